"""Memory of a rank's GPU: level over time, by phase and by pipeline chunk."""

from tracekit.metrics.memory.chunk_memory import ChunkMemory, measure_chunk_memory
from tracekit.metrics.memory.rank_memory import (
    MEMORY_CURVE,
    MEMORY_PHASES,
    RankMemory,
    gpu_memory,
    measure_rank_memory,
)

__all__ = [
    "MEMORY_CURVE",
    "MEMORY_PHASES",
    "ChunkMemory",
    "RankMemory",
    "gpu_memory",
    "measure_chunk_memory",
    "measure_rank_memory",
]
