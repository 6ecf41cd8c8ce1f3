"""A `datasets.Dataset` in, its rows of tokens out. The only place that knows that library."""
