"""Measure this machine on a sample, and forecast the whole corpus."""
