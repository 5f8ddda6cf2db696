"""Nsight Systems: reports and their exports (sqlite, parquetdir, arrowdir, arrow) into the events table."""

from tracekit.parsers.nsight.reader import read

__all__ = ["read"]
