"""PyTorch profiler (Kineto) traces."""

from tracekit.parsers.kineto.reader import read

__all__ = ["read"]
