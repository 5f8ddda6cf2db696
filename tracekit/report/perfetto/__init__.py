"""Traces with tracks of labels and cells, for ui.perfetto.dev."""
