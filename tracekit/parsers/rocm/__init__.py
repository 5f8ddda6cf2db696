"""Reader of recordings of ROCm's profilers: databases of rpd and rocprofv3, and the JSON of rocprofv3."""

from tracekit.parsers.rocm.reader import read

__all__ = ["read"]
