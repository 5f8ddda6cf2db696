"""PyTorch profiler (Kineto) traces."""

from tracekit.parsers.kineto.merged import read_ranks
from tracekit.parsers.kineto.reader import read

__all__ = ["read", "read_ranks"]
