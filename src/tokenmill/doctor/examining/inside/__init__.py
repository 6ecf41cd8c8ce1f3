"""What runs in the processes of an examination: the user's script, and experiments on its function."""
