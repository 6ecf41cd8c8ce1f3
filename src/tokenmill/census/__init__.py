"""A census of a store: what its parts hold, counted part by part in workers, added up in bounded memory."""

PRELOAD = ("tokenmill.census.counting", "tokenmill.census.duplicates", "tokenmill.census.values")
"""What workers of a census load before there is work for them."""
