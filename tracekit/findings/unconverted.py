"""Findings whose family has no class yet: the document as it is found, its words made by the reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from tracekit.documents.findings import CODES_OF_ITERATIONS, Effect, EvidenceValue, Finding
from tracekit.findings.kind import FindingKind
from tracekit.metrics.host.time_by_activity import HOST_CODES

if TYPE_CHECKING:
    from tracekit.findings.context import Context

TRAINING_CODES = frozenset(
    {
        "late_reduction",
        "optimizer",
        "recompute",
        "repeated_reduction",
        "schedule_gap",
        "small_messages",
        "unused_parameters",
    }
)
"""Codes that only training has: in inference such a pattern means something else."""
TRAINING_CASES = frozenset(
    {
        ("exposed_comm", "gathered_twice"),
        ("memory_peak", "above_schedule"),
        ("memory_peak", "nearly_full"),  # a server fills the GPU with its cache on purpose
        ("memory_peak", "outlived"),
        ("precision", "trained_weights"),
        ("slow_kernel", "optimizer"),
        ("slow_step", "checkpoint"),
        ("slow_step", "evaluation"),
        ("slow_step", "unused_parameters"),
    }
)
"""The same of single cases of a code."""
VENDOR_CODES = frozenset({"exposed_comm", "launch_bound", "schedule_gap", "slow_kernel"})
"""Codes whose advice in training names graphs or libraries of kernels, which each vendor calls otherwise."""
RANK_CODES = frozenset({"slow_rank", "uneven_work", "late_host", "slow_link"})
"""Codes of findings about ranks that the others wait for."""


class Unconverted(FindingKind, frozen=True, kw_only=True):
    """A finding that is a document from the start."""

    document: Finding

    @classmethod
    def of(cls, document: Finding) -> Unconverted:
        """Return the finding of a document."""
        effect = {name: getattr(document, name) for name in Effect.__struct_fields__}
        return cls(document=document, change=document.change, **effect)

    @property
    def code(self) -> str:  # type: ignore[override]
        return self.document.code

    @property
    def case(self) -> str:  # type: ignore[override]
        return self.document.case

    @property
    def training_only(self) -> bool:  # type: ignore[override]
        return self.code in TRAINING_CODES or (self.code, self.case) in TRAINING_CASES

    @property
    def of_iterations(self) -> bool:  # type: ignore[override]
        return self.code in CODES_OF_ITERATIONS

    @property
    def of_host(self) -> bool:  # type: ignore[override]
        return self.code in HOST_CODES

    @property
    def names_vendor(self) -> bool:  # type: ignore[override]
        return self.code in VENDOR_CODES

    @property
    def ended_run(self) -> bool:  # type: ignore[override]
        return self.code == "out_of_memory"

    @property
    def least_is_unknown(self) -> bool:  # type: ignore[override]
        return self.code == "launch_bound"

    def evidence(self) -> dict[str, EvidenceValue]:
        return {**self.document.evidence, **self._evidence_of_run()}

    def text(self) -> str:
        return self.document.text

    def advice(self) -> str:
        return self.document.advice


class DocumentFinder(msgspec.Struct, frozen=True):
    """A function that finds documents, as something that looks for findings."""

    find_documents: Callable[[Context], Iterator[Finding]]
    independent_of_steps: bool = False
    of_iterations: bool = False

    def find(self, context: Context) -> Iterator[FindingKind]:
        """Yield what the function finds."""
        for document in self.find_documents(context):
            yield Unconverted.of(document)
