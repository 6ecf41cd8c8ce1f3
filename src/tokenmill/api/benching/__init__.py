"""`bench`: what this machine makes of a text with each engine and number of workers, and what all of it will take."""

from tokenmill.api.benching.call import bench
from tokenmill.api.benching.result import Benchmark

__all__ = ["Benchmark", "bench"]
