"""Exports: a store's documents, split, ordered and cut into the shards of a format. The bytes are the formats' own."""

PRELOAD = ("tokenmill.exports.write_shard",)
"""What workers of an export load before there is work for them."""
