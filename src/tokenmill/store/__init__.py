"""What is on disk: every file of a run, read and checked."""
