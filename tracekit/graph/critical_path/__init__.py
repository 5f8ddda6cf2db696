"""The critical path: a chain of work from a step's start to its end over all ranks, whose parts sum to the step.

``pieces`` reduces one rank's GPU events to the pieces that the path may run through, ``links``
connects those of all ranks by their communications and follows the chain back from the end of each
step, and ``path`` presents the result.
"""

from tracekit.graph.critical_path.path import CriticalPath, critical_path, join_cells
from tracekit.graph.critical_path.pieces import PATH_PIECES, find_path_pieces

__all__ = ["PATH_PIECES", "CriticalPath", "critical_path", "find_path_pieces", "join_cells"]
