"""Exports: split, order and cut a store's documents into shards. The modules in `formats` write the bytes."""

# Modules that an export's workers import before they get work.
PRELOAD = ("tokenmill.exports.write_shard",)
