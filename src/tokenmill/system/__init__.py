"""Facts about this host and this process: cores, memory, control groups, environment, terminal."""
