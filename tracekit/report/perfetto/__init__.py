"""Traces with tracks of labels, cells and the critical path, for ui.perfetto.dev."""
