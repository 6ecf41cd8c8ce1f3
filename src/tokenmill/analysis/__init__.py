"""A census of a store: what its parts hold, counted part by part in workers, added up in bounded memory."""

PRELOAD = ("tokenmill.analysis.count_parts", "tokenmill.analysis.duplicates", "tokenmill.analysis.by_column")
"""What workers of a census load before there is work for them."""
