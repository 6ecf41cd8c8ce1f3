"""The executor that runs on a Ray cluster."""
