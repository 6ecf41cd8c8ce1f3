"""Renders the statistics of a store as one HTML page. The page needs no script, no network and no other file."""

from tokenmill.analysis.html.page import render

__all__ = ["render"]
