"""Helpers that every package may use: files, text, worker processes, columns."""
