"""Verdicts for continuous integration: words, JUnit, GitHub."""
