"""Long tests, checks and writers of generated pages; the first lines of each file say how it is run."""
