"""Statistics of a complete store: workers count the parts, and the caller adds the counts up in bounded memory."""

# Modules that the workers import before the first item arrives.
PRELOAD = ("tokenmill.analysis.count_parts", "tokenmill.analysis.duplicates", "tokenmill.analysis.by_column")
