"""Results of runs with several processes per rank: roles, weight updates and iterations of an RL loop.

``tracekit.roles`` computes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tracekit.documents.roles import Iteration, PhaseBand, WeightUpdate

if TYPE_CHECKING:
    from tracekit.analysis.result import Analysis


class Role(msgspec.Struct, frozen=True, eq=False):
    """One kind of process, analysed as a run of its own."""

    name: str
    kind: str
    """``trainer``, ``rollout``, ``inference`` (forward only, no growing cache), ``parameter_server``,
    ``inference_worker`` (takes weights only) or ``unknown``."""
    ranks: tuple[int, ...]
    analysis: Analysis


class RoleResults(msgspec.Struct, frozen=True, eq=False):
    """Everything about a run that its roles' own analyses do not hold."""

    main_role: str | None = None
    roles: tuple[Role, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    weight_updates: tuple[WeightUpdate, ...] = ()
    bands: tuple[PhaseBand, ...] = ()
