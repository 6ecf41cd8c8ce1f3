"""Measures this machine on a sample of a corpus, and forecasts the time and cost of the whole corpus."""
