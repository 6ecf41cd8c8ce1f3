"""A command is run and its processes are watched: who died, of what, and what to change. `command.watch` begins."""
