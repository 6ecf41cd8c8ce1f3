"""The report of a store: figures in, one page of HTML out. It needs no script, no network and no other file."""

from tokenmill.analysis.html.page import render

__all__ = ["render"]
