"""Files on a local or network file system."""
