"""Results as Markdown."""
