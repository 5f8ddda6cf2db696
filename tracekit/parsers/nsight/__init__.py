"""Parser of Nsight Systems reports and their exports (sqlite, parquetdir, arrowdir, arrow)."""

from tracekit.parsers.nsight.reader import read

__all__ = ["read"]
