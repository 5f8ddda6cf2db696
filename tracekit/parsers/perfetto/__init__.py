"""Reader of Perfetto traces (``.pftrace``) as PyTorch's profiler writes them."""

from tracekit.parsers.perfetto.reader import read

__all__ = ["read"]
