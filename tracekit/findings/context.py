"""Shared input of the registry's entries: the analysis, its step time, and predictions of changes."""

from __future__ import annotations

import re
from functools import cached_property

import msgspec
import polars as pl

from tracekit.align.gpu_clock import WITHHOLDING_CASES
from tracekit.analysis import Analysis
from tracekit.documents.analysis import ChangedStep
from tracekit.documents.findings import Place
from tracekit.findings.kind import FindingKind, RunFacts
from tracekit.findings.recorded import has_host_calls
from tracekit.graph.change import Change
from tracekit.metrics.step_time import free_exposed_share, free_idle_share
from tracekit.schema import has_stacks

FRAMEWORK_PATTERNS = {
    "Megatron-LM": r"LinearWithGradAccumulation|(?i:\bmegatron\b)|_TransformerEngine|_LayerNormLinear",
    "FSDP2": r"FSDP::|\bfsdp\b",
    "DeepSpeed": r"(?i)deepspeed",
    "DDP": r"DistributedDataParallel",
}
"""Frameworks by what their traces hold: group descriptions, annotations, operators, packs of rules
that decided."""
PYTORCH_PATTERN = r"^aten::|\bat::native\b|\bc10::|\bat::cuda\b"
"""Names of PyTorch's operators and kernels."""
VENDORS_OF_GPUS = {
    "amd": r"(?i)amd|instinct|radeon|^MI[0-9]{2,3}",
    "nvidia": r"(?i)nvidia|tesla|quadro|geforce|titan|\b[RG]TX\b|\b(RTX|GTX|GB|GH|[PTVALHB])[0-9]{1,4}\b",
}
"""Names of GPUs by their vendor."""
VENDORS_OF_CALLS = {
    "amd": r"^hip[A-Z]|^__amd_|^Cijk_|^miopen",
    "nvidia": r"^cuda[A-Z]|^cu[A-Z]|nvjet|cutlass|cudnn|ampere_|sm[89]0_|volta_|turing_",
}
"""Names of calls of the host and of kernels by the vendor whose libraries they belong to."""
_GRAPH_NOTICES = ("graphs-whole", "graphs-unseen", "graph-nodes-missing")


def places_of(rows: pl.DataFrame) -> tuple[Place, ...]:
    """Return the places in a table with rank, step, start_ns, end_ns, name, and source if it is known.

    >>> rows = pl.DataFrame({"rank": [3], "step": [1], "start_ns": [5], "end_ns": [9], "what": ["all_reduce"]})
    >>> places_of(rows)
    (Place(rank=3, step=1, start_ns=5, end_ns=9, name='all_reduce', source=None),)
    """
    return tuple(Place(*row) for row in rows.iter_rows())


def saved_range_ns(predicted: ChangedStep) -> tuple[int, int] | None:
    """Return what a change saves at least and at most: the longest predicted step saves least.

    What makes all steps longer or shorter says little about a small saving, which is then at most
    twice what is predicted.

    >>> saved_range_ns(ChangedStep("a", ("a",), 100, saves_ns=40, saves_range_ns=(30, 50)))
    (30, 50)
    """
    if predicted.saves_range_ns is None or predicted.saves_ns is None:
        return None
    least_ns, most_ns = predicted.saves_range_ns
    saves_ns = max(predicted.saves_ns, 0)
    step_ns = predicted.free_ns or predicted.measured_ns
    return max(least_ns, 0), min(most_ns, 2 * saves_ns, step_ns)


class Context:
    """An analysis with what findings are made from."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.step = analysis.step
        self.step_ns = analysis.step.reference_ns or 0
        """Step without the profiler, or as recorded if that is not known, as far as the recording shows it."""
        self.found: list[FindingKind] = []
        """What was found so far: who looks for findings sees those of whom was asked before."""
        self._predictions = {row.change: row for row in analysis.changed_steps}

    def share(self, ns: float) -> float:
        """Return a time as a share of the step time."""
        return ns / self.step_ns if self.step_ns else 0.0

    @cached_property
    def free_idle_share(self) -> float:
        """Idle time of the step without the profiler over the recorded one, 0 to 1; 1 if it is not known."""
        return free_idle_share(self.step)

    @cached_property
    def longest_free_share(self) -> float:
        """The longest step without the profiler over the likely one, at least 1; 1 if it is not known."""
        free_range_ns = self.step.free_range_ns
        if free_range_ns is None or not self.step.free_ns:
            return 1.0
        return max(free_range_ns[1] / self.step.free_ns, 1.0)

    def free_exposed_share(self, label: str) -> float:
        """Return the exposed time of *label* without the profiler over the recorded one, 0 to 1.

        Ranks that the profiler delays let the others wait. 1 if it is not known.
        """
        return free_exposed_share(self.step, label)

    @property
    def can_replay(self) -> bool:
        """Whether the run's events were kept, so that changes can be predicted."""
        return self.analysis.graph is not None

    def predict(self, *changes: Change) -> ChangedStep | None:
        """Return the step with all *changes*.

        None if the run's events were not kept, or a change is refused. Several changes have no ranges.
        """
        key = ", ".join(map(str, changes))
        if key not in self._predictions:
            graph = self.analysis.graph
            if graph is None:
                return None
            predict = graph.predict if len(changes) == 1 else graph.predict_saving
            self._predictions[key] = predict(changes)
        row = self._predictions[key]
        return row if row.why_not is None and row.saves_ns is not None else None

    @cached_property
    def usual_steps(self) -> frozenset[int | None]:
        """Steps that do not stand out."""
        return frozenset(step.step for step in self.step.usual)

    @cached_property
    def ranks(self) -> int:
        """Number of ranks with GPU work."""
        return max(len(self.step.by_rank), 1)

    @cached_property
    def framework(self) -> str | None:
        """The framework that the trace shows; the first of ``FRAMEWORK_PATTERNS`` that is seen.

        In inference a pack of rules is no sign of a framework of training: its rules may decide about
        kernels that a server has as well.
        """
        columns = ["group_desc", "annotations", "chain"]
        if not self.is_inference:
            columns.append("pack")
        reasons = self.analysis.tables["reasons"].select(columns)
        values: list[str] = []
        for column in reasons:
            values += column.drop_nulls().unique().to_list()
        text = "\n".join(values)
        for name, pattern in FRAMEWORK_PATTERNS.items():
            if re.search(pattern, text):
                return name
        return None

    @cached_property
    def runs_pytorch(self) -> bool:
        """Whether the program is PyTorch's: its profiler recorded it, or PyTorch's operators and kernels are in it."""
        if any(source.reader != "nsight" for source in self.analysis.sources) or self.has_operators:
            return True
        reasons = self.analysis.tables["reasons"].select(pl.col("name", "op").cast(pl.String))
        is_pytorch = pl.any_horizontal(pl.all().str.contains(PYTORCH_PATTERN)).any()
        return bool(reasons.select(is_pytorch).item())

    @property
    def is_inference(self) -> bool:
        """Whether the program only runs its model forward."""
        return self.analysis.workload == "inference"

    @cached_property
    def facts(self) -> RunFacts:
        """What the words of every finding depend on."""
        return RunFacts(
            is_inference=self.is_inference,
            generates=bool(self.analysis.step_kinds),
            vendor=self.vendor,
            steps_marked=self.step.marked,
        )

    @cached_property
    def facts_of_host(self) -> RunFacts:
        """What the words of findings about the host depend on."""
        return msgspec.structs.replace(self.facts, between_steps_share=self.between_steps_share)

    @cached_property
    def captured_launches(self) -> int:
        """Launches that recorded a graph, if they are more than the GPU events; else 0.

        Such a recording shows how graphs are made: the GPU waits for the host, which a replay does
        not.
        """
        launches = 0
        for notice in self.analysis.notices:
            if notice.code == "graph-captured":
                launches += int(str(notice.values["launches"]))
        events = sum(sum(result.whole.label_count.values()) for result in self.analysis.ranks)
        return launches if launches > events else 0

    @cached_property
    def lacks_launches(self) -> bool:
        """Whether launches are not in the file and no operators stand in for them, or contradict the GPU's times.

        A replay saves too little then.
        """
        by_time = any(
            notice.code == "no-launches" and notice.values["case"] == "by_time"
            for notice in self.analysis.notices
        )
        return by_time or self.has_doubtful_clock

    @cached_property
    def has_doubtful_clock(self) -> bool:
        """Whether it is not known by how much the clock of a rank's GPU is off against its host's."""
        return any(
            notice.code == "gpu-clock" and notice.values["case"] in WITHHOLDING_CASES
            for notice in self.analysis.notices
        )

    @cached_property
    def between_steps_share(self) -> float | None:
        """Share of the idle time that lies between two steps of inference, 0 to 1; None without such steps."""
        idle_ns = 0
        for result in self.analysis.ranks:
            idle_ns += sum(timed.budget.idle_ns for timed in result.timed_steps)
        if not self.analysis.step_kinds or not idle_ns:
            return None
        ends_before = pl.col("end_ns").cum_max().shift(1).over("rank")
        gap_ns = (pl.col("start_ns") - ends_before).clip(lower_bound=0)
        steps = self.analysis.tables["steps"].sort("rank", "start_ns")
        return min(float(steps.select(gap_ns.sum()).item()) / idle_ns, 1.0)

    @cached_property
    def vendor(self) -> str | None:
        """Vendor of the GPUs, "amd" or "nvidia", by their names, else by those of calls and kernels.

        None if neither tells.
        """
        devices = [name for source in self.analysis.sources for name in source.devices]
        names = pl.Series(devices, dtype=pl.String)
        vendors = VENDORS_OF_GPUS
        if not devices:
            tables = (self.analysis.tables[table] for table in ("host_time", "kernels"))
            names = pl.concat([table["name"].cast(pl.String).unique() for table in tables])
            vendors = VENDORS_OF_CALLS
        for vendor, pattern in vendors.items():
            if names.str.contains(pattern).any():
                return vendor
        return None

    @cached_property
    def has_stacks(self) -> bool:
        """Whether Python's stacks were recorded."""
        return any(map(has_stacks, self.analysis.sources))

    @cached_property
    def has_host_calls(self) -> bool:
        """Whether every rank recorded the calls by which its host launches and waits."""
        return all(map(has_host_calls, self.analysis.sources))

    @cached_property
    def has_operators(self) -> bool:
        """Whether PyTorch's operators were recorded: without them it is unknown what the host does."""
        return any(source.counts.get("cpu_op", 0) for source in self.analysis.sources)

    @cached_property
    def has_unread_stacks(self) -> bool:
        """Whether Python's stacks were recorded and not read."""
        return any(source.skipped.get("python", 0) for source in self.analysis.sources)

    @cached_property
    def uses_cuda_graphs(self) -> bool:
        """Whether a kernel was launched by a CUDA graph, or a graph was recorded without its kernels."""
        in_graph = bool(self.analysis.tables["reasons"]["in_graph"].any())
        return in_graph or any(notice.code in _GRAPH_NOTICES for notice in self.analysis.notices)
