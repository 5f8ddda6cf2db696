"""PyTorch profiler (Kineto) traces."""

from tracekit.parsers.kineto.header import Header, peek, rank_in_name, sniff
from tracekit.parsers.kineto.reader import read

__all__ = ["Header", "peek", "rank_in_name", "read", "sniff"]
