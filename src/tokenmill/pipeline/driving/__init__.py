"""The loop in the parent process: driver, schedule, isolation, events, manifest, heartbeat."""
