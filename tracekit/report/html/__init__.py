"""HTML pages of analyses and diffs."""
