"""Servers for the tests, all on loopback: SeaweedFS for S3, azurite for Azure, a hub over HTTP, and a proxy that
injects faults between any of them and its client.
"""
