"""Memory of a rank's GPU: level over time, by phase and pipeline chunk, what fills its peak, leaks, fragmentation."""

from tracekit.memory.measures.chunk_memory import ChunkMemory, measure_chunk_memory
from tracekit.memory.measures.measure import RANK_MEMORY, history_notices, measure_memory
from tracekit.memory.measures.phases import MEMORY_PHASES
from tracekit.memory.measures.rank_contents import MemoryHistory, RankContents, measure_contents
from tracekit.memory.measures.rank_memory import RankMemory, measure_rank_memory
from tracekit.memory.measures.replay import Replay, gpu_memory, replay_snapshot

__all__ = [
    "MEMORY_PHASES",
    "RANK_MEMORY",
    "ChunkMemory",
    "MemoryHistory",
    "RankContents",
    "RankMemory",
    "Replay",
    "gpu_memory",
    "history_notices",
    "measure_chunk_memory",
    "measure_contents",
    "measure_memory",
    "measure_rank_memory",
    "replay_snapshot",
]
