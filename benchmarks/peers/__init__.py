"""The comparison with other tools: `python -m benchmarks.peers`."""
