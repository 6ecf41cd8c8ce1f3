"""What a unit is, and everything that runs in a worker."""
