"""The evidence of a finding in words: single values by their names, and phrases made of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit._util.text import ms, percent, ranks_named, rounded, short_ms, size
from tracekit.documents.findings import Finding, Place
from tracekit.documents.memory import MemoryRemedy
from tracekit.memory.words import remedies_sentence
from tracekit.report.text import listed
from tracekit.report.words import WORDS
from tracekit.schema import LABEL_WORDS

ONCE_A_STEP = 0.75
"""Mean count per step from which something happens once a step; less is in one of two steps or
more."""
MAX_FINDING_STEPS_NAMED = 4
"""Steps that a sentence names."""
NEARLY_ALL = 0.9
"""Share from which a cause stands for the whole."""
NO_COMPUTE_SHARE = 0.01
"""Share of exposed transfers up to which compute that could hide them is none."""
MOST_OF_IDLE = 0.5
"""Share of the idle time between two steps, from which a sentence says so."""
GRAPHS_OF_VENDORS = {"amd": "HIP graphs", "nvidia": "CUDA graphs"}
QUEUES_OF_VENDORS = {
    "amd": "set `GPU_MAX_HW_QUEUES` to 8 or more",
    "nvidia": "set `CUDA_DEVICE_MAX_CONNECTIONS` to 8 or more",
}
"""How to get more hardware queues."""
ATTENTION_OF_VENDORS = {"amd": ("CK", "AITER"), "nvidia": ("FlashAttention 3", "cuDNN")}
"""Libraries with kernels of attention."""
LIMIT_WORDS = {"peak": "GPU's peak rate", "bandwidth": "memory bandwidth"}
"""What limits an operator, in words."""
FRAMEWORK_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "Megatron-LM": {
        "tp_comm": "`--tp-comm-overlap`",
        "dp_comm": "`--overlap-grad-reduce` and `--overlap-param-gather`",
        "ep_dispatch": "`--overlap-moe-expert-parallel-comm`",
        "ep_combine": "`--overlap-moe-expert-parallel-comm`",
        "imbalance": "`--pipeline-model-parallel-layout`",
        "narrow": "`--bf16`",
        "reduction": "`--overlap-grad-reduce`",
        "messages": "a larger `--ddp-bucket-size`",
        "attention": "`--attention-backend flash`",
        "loss": "`--cross-entropy-loss-fusion`",
        "fuse": "leave out the `--no-…-fusion` options, or `torch.compile` the rest",
        "recompute": "`--recompute-granularity selective`, or a smaller `--recompute-num-layers`",
        "bubble": "`--num-layers-per-virtual-pipeline-stage`, or a smaller `--micro-batch-size`",
    },
    "FSDP2": {
        "dp_comm": "`set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`",
        "bytes": "a mesh that shards over fewer ranks, or a narrower type in `MixedPrecisionPolicy`",
    },
    "DeepSpeed": {
        "dp_comm": "`overlap_comm`, and `stage3_prefetch_bucket_size` with ZeRO 3",
        "imbalance": "`partition_method`",
        "narrow": "`bf16` in DeepSpeed's configuration",
        "reduction": "`overlap_comm`",
        "messages": "a larger `reduce_bucket_size`",
    },
    "DDP": {
        "dp_comm": "`bucket_cap_mb`",
        "bytes": "`no_sync` over more micro-batches, or a gradient compression hook",
    },
}
"""Options of frameworks, by what they change: the overlap of a label, the bytes moved, the balance
of stages, the bubble; types, attention, losses and fusion."""


SWITCHES: Mapping[str, str] = {
    "tf32": '`torch.set_float32_matmul_precision("high")`',
    "narrow": "`torch.autocast`",
    "attention": "`torch.nn.functional.scaled_dot_product_attention`",
    "messages": "larger buckets (`bucket_cap_mb=25` or more), or one flat tensor instead of one call per parameter",
    "reduction": "`DistributedDataParallel`, or hooks (`register_post_accumulate_grad_hook`) with `async_op=True`",
    "loss": "`torch.compile` the head with the loss, or a fused linear cross-entropy (Liger)",
    "fuse": "`torch.compile` the blocks, or use fused kernels (`torch.nn.RMSNorm`, `torch.nn.functional.gelu`)",
    "recompute": "checkpoint fewer blocks",
    "layout": "`model.to(memory_format=torch.channels_last)`, and the same for the images",
}
"""What to switch on where no framework has its own way."""
AMD_SWITCHES: Mapping[str, str] = {
    "attention": "the CK or AITER kernels behind `torch.nn.functional.scaled_dot_product_attention`",
    "layout": (
        "`model.to(memory_format=torch.channels_last)`, and the same for the images; before ROCm 7 with "
        "`PYTORCH_MIOPEN_SUGGEST_NHWC=1`"
    ),
}
"""The same in the words of ROCm."""


def framework_options(framework: object, topic: str) -> str:
    """Return the framework's own options for a label or for ``bytes``; empty if there are none.

    >>> framework_options("DDP", "dp_comm"), framework_options(None, "dp_comm")
    ('`bucket_cap_mb`', '')
    """
    return FRAMEWORK_OPTIONS.get(str(framework), {}).get(topic, "")


def steps_named(steps: Sequence[int]) -> str:
    """Return steps by their numbers, the first few of many.

    >>> steps_named([21]), steps_named([21, 24])
    ('step 21', 'steps 21, 24')
    """
    return f"{'step' if len(steps) == 1 else 'steps'} {listed(steps, most=MAX_FINDING_STEPS_NAMED)}"


_PHASES_OF_REQUESTS = ("forward", "backward", "recompute", "optimizer")
"""Origins of a request that are named in a sentence."""


class FindingWords:
    """What a finding holds, as text.

    >>> evidence = {"host_ns": 4_510_000, "calls_per_step": 8.0}
    >>> words = FindingWords(Finding(code="allocator", cost_ns=1, share=0.1, evidence=evidence))
    >>> words["host_ns"], words.how_often, words["name"]
    ('4.51 ms', '8 times a step', 'unknown')
    """

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        self.evidence = finding.evidence

    def __getitem__(self, name: str) -> str:
        """Return one value of the evidence; its name tells the unit."""
        value = self.evidence.get(name)
        if value is None:
            return "unknown"
        if isinstance(value, str):
            return value
        if name.endswith("_ns"):
            return short_ms(value)
        if name.endswith("_bytes"):
            return size(round(value))
        if name.startswith("share") or name.endswith("_share"):
            return percent(float(value), digits=0)
        return rounded(value) if isinstance(value, float) else f"{value:,}"

    def switch(self, topic: str) -> str:
        """Return what to switch on: the framework's own option, else the vendor's, else PyTorch's."""
        own = framework_options(self.evidence.get("framework"), topic)
        of_vendor = AMD_SWITCHES if self.evidence.get("vendor") == "amd" else {}
        return own or of_vendor.get(topic) or SWITCHES[topic]

    @property
    def cost(self) -> str:
        """Time per step."""
        return short_ms(self.finding.cost_ns)

    @property
    def work(self) -> str:
        """GPU time of its kernels, and that the CPU launches them where the saving is larger than that."""
        work = f"{self['work_ns']} of GPU time"
        work_ns = self.evidence.get("work_ns")
        saves_ns = self.finding.saves_ns
        if isinstance(work_ns, int | float) and saves_ns is not None and saves_ns > work_ns:
            return f"{work}, and the CPU's to launch them"
        return work

    @property
    def rank(self) -> str:
        """The first rank that it is about."""
        return str(self.finding.ranks[0])

    @property
    def ranks_named(self) -> str:
        """All ranks that it is about."""
        return ranks_named(self.finding.ranks)

    @property
    def source(self) -> str:
        """The first function and line that is known."""
        known = self._place_with_source
        return "unknown" if known is None or known.source is None else known.source

    @property
    def _place_with_source(self) -> Place | None:
        """The first place whose source is known; of a wait one of the call or operator that is named."""
        places = self.finding.where
        if self.finding.code == "host_sync":
            named = (self.evidence.get("name"), self.evidence.get("op"))
            places = tuple(shown for shown in places if shown.name in named)
        return next((shown for shown in places if shown.source), None)

    @property
    def called_from(self) -> str:
        """The function that makes the first call that is known, or the range that it is in; empty if neither is."""
        known = self._place_with_source
        if known is None:
            return ""
        return f", {'inside' if known.is_in_range else 'called from'} {known.source}"

    @property
    def label_words(self) -> str:
        """The label with its meaning."""
        label = str(self.evidence.get("label"))
        return f"{LABEL_WORDS.get(label, label)} ({label})"

    @property
    def category_words(self) -> str:
        """The category of memory."""
        return str(self.evidence.get("category")).replace("_", " ")

    @property
    def limit_words(self) -> str:
        """What limits the operator; of a peak rate, the type that it is the rate of."""
        limit = LIMIT_WORDS.get(str(self.evidence.get("limit")), "GPU's limit")
        dtype = self.evidence.get("peak_dtype")
        return limit if dtype is None else f"{limit} in {dtype}"

    @property
    def rate(self) -> str:
        """Rate of the transfers; empty if it is not known."""
        rate = self.evidence.get("gb_per_s")
        return f" at {rate:,.2g} GB/s" if isinstance(rate, float) else ""

    @property
    def compute_to_hide_it(self) -> str:
        """How much compute is left to hide transfers."""
        free_ns = self.evidence.get("free_compute_ns")
        exposed_ns = self.evidence.get("exposed_ns")
        if not isinstance(free_ns, int) or not isinstance(exposed_ns, int):
            return "compute could hide little of it"
        if free_ns < NO_COMPUTE_SHARE * exposed_ns:
            return "there is no compute to hide it"
        return f"compute could hide {short_ms(free_ns)}"

    @property
    def faster_links(self) -> str:
        """What links twice as fast would save; empty where no saving is predicted."""
        saving_ns = self.finding.saving_ns
        if saving_ns is None:
            return ""
        return f", links twice as fast would save {short_ms(saving_ns)}"

    @property
    def late_rank(self) -> str:
        """The rank that is waited for longest; late ranks if none of them makes most of the waiting."""
        rank = self.evidence.get("late_rank")
        share = self.evidence.get("late_rank_share")
        if rank is None or not isinstance(share, float):
            return "late ranks"
        return f"rank {rank}" if share >= NEARLY_ALL else f"late ranks, mostly rank {rank}"

    @property
    def look_at_late_rank(self) -> str:
        """What to do about ranks that are late for a reason that is not known."""
        rank = self.evidence.get("late_rank")
        if rank is None:
            return "find in the timeline which rank comes last, and what it does before"
        return f"look in the timeline at what rank {rank} does before the others wait for it"

    @property
    def lateness(self) -> str:
        """Time that others wait for a rank; what was recorded too, where the profiler made it longer."""
        late = self["late_ns"]
        if self.evidence.get("recorded_late_ns") is None:
            return late
        return f"{late} ({self['recorded_late_ns']} as recorded)"

    @property
    def in_label(self) -> str:
        """The communication in which others wait; empty if it is not known."""
        label = self.evidence.get("label")
        return f" in {label}" if label else ""

    def because(self, relative: str, clause: str) -> str:
        """Return why ranks are waited for: a relative clause, or how much of the waiting is because of *clause*."""
        share = self.evidence.get("explained_share")
        late_ns = self.evidence.get("late_ns")
        if not isinstance(share, float) or share >= NEARLY_ALL or not isinstance(late_ns, int):
            return f", {relative}"
        return f", {short_ms(share * late_ns)} of it because {clause}"

    @property
    def as_recorded(self) -> str:
        """That a time is one of the recording, where the step is stated without the profiler."""
        return " (as recorded)" if self.evidence.get("is_recorded_time") else ""

    @property
    def option(self) -> str:
        """The framework's own options for the label; empty if there are none."""
        options = framework_options(self.evidence.get("framework"), str(self.evidence.get("label")))
        return f" ({options})" if options else ""

    @property
    def fewer_bytes(self) -> str:
        """How to send fewer bytes."""
        options = framework_options(self.evidence.get("framework"), "bytes")
        return options or "a narrower type, compression"

    @property
    def in_op(self) -> str:
        """The operator or call of the host; empty if it is not known."""
        operator = self.evidence.get("op") or self.evidence.get("name")
        is_value = str(operator) == "aten::_local_scalar_dense"
        return f" in {'aten::item' if is_value else operator}" if operator else ""

    @property
    def in_module(self) -> str:
        """The module of the model; empty if it is not known."""
        module = self.evidence.get("module")
        return f" ({module})" if module else ""

    @property
    def at_line(self) -> str:
        """The source line; empty if it is not known."""
        line = self.evidence.get("line")
        return f" in {line}" if line else ""

    @property
    def how_often(self) -> str:
        """How often something happens: once a step, 8 times a step, in one of 4 steps."""
        count = self.evidence.get("calls_per_step")
        if not isinstance(count, int | float) or count <= 0:
            return "now and then"
        if count < ONCE_A_STEP:
            return f"in one of {round(1 / count)} steps"
        times = round(count)
        unit = "a step" if self.has_steps else "in the recording"
        return f"once {unit}" if times == 1 else f"{times:,} times {unit}"

    @property
    def waits_for_gpu(self) -> str:
        """The waits for the GPU as a subject with its verb: the 8 waits a step for the GPU are."""
        waits = self.evidence.get("waits_per_step")
        count = round(waits) if isinstance(waits, int | float) else 0
        if not count:
            return "the waits for the GPU are"
        if count == 1:
            return f"the wait {self.per_step} for the GPU is"
        return f"the {count:,} waits {self.per_step} for the GPU are"

    @property
    def per_step(self) -> str:
        """What a count is of: a step, or the whole recording where it has no marks of steps."""
        return "a step" if self.has_steps else "in all"

    @property
    def has_steps(self) -> bool:
        """Whether the recording has marks of steps; without them a time is of the whole recording."""
        return self.evidence.get("steps_marked") is not False

    @property
    def is_inference(self) -> bool:
        """Whether the program only runs its model forward."""
        return self.evidence.get("workload") == "inference"

    @property
    def generates(self) -> bool:
        """Whether the program generates tokens for sequences, as a server does."""
        return bool(self.evidence.get("generates"))

    @property
    def other_attention_kernels(self) -> str:
        """The vendor's libraries of attention but that of the operator; empty where the GPU is not known."""
        libraries = ATTENTION_OF_VENDORS.get(str(self.evidence.get("vendor")), ())
        op = str(self.evidence.get("op")).lower()
        others = [library for library in libraries if library.lower() not in op]
        return f" ({', '.join(others)})" if others else ""

    @property
    def between_steps(self) -> str:
        """How much of the idle time lies between two steps; empty unless that is most of it."""
        share = self.evidence.get("between_steps_share")
        if not isinstance(share, float) or share < MOST_OF_IDLE:
            return ""
        return f" ({percent(share, digits=0)} of all idle time is between two steps)"

    @property
    def on_new_shapes(self) -> str:
        """Which operator takes longer on each new shape of its inputs, and how long; empty if there is none."""
        if self.evidence.get("new_shapes_op") is None:
            return ""
        return (
            f"; {self['new_shapes_ns']} of it in {self['new_shapes_op']}, which takes many times as long "
            "on each new shape of its inputs"
        )

    @property
    def keep_shapes(self) -> str:
        """Advice against new shapes; empty where none cost time."""
        if self.evidence.get("new_shapes_op") is None:
            return ""
        return (
            f"; give {self['new_shapes_op']} few different shapes (padded lengths, a cache of fixed size), "
            "or another kernel"
        )

    @property
    def is_pytorch(self) -> bool:
        """Whether PyTorch's words fit the program."""
        return self.evidence.get("is_pytorch") is not False

    @property
    def communication_log(self) -> str:
        """How NCCL and RCCL tell of links; empty where neither may be what communicates."""
        return " (`NCCL_DEBUG=INFO`)" if self.evidence.get("vendor") else ""

    @property
    def recorders(self) -> str:
        """What records the CPU's activities; the vendor's own recorder only where the GPU is known."""
        if self.evidence.get("vendor") == "nvidia":
            return "NVTX ranges or samples of its stacks in Nsight Systems, or PyTorch's profiler"
        return "PyTorch's profiler with CPU activities and stacks"

    @property
    def more_queues(self) -> str:
        """How to give the GPU more hardware queues, in the vendor's words where the GPU is known."""
        unnamed = "give the device more hardware queues"
        return QUEUES_OF_VENDORS.get(str(self.evidence.get("vendor")), unnamed)

    @property
    def graphs(self) -> str:
        """The vendor's name of graphs of kernels; one that is no vendor's where the GPU is not known."""
        return GRAPHS_OF_VENDORS.get(str(self.evidence.get("vendor")), "captured graphs")

    @property
    def mostly(self) -> str:
        """How much of the exposed time has the cause that is named; empty if nearly all of it."""
        share = self.evidence.get("cause_share")
        if not isinstance(share, float) or share >= NEARLY_ALL:
            return ""
        return f"{percent(share, digits=0)} of that "

    @property
    def in_steps(self) -> str:
        """In which of the recorded steps."""
        late_steps = self.evidence.get("late_steps")
        is_always_late = late_steps == self.evidence.get("recorded_steps")
        if is_always_late or not self.finding.steps:
            return " in every step"
        return f" in {steps_named(self.finding.steps)}"

    @property
    def in_some_steps(self) -> str:
        """In which of the recorded steps; empty if in all."""
        words = self.in_steps
        return "" if words == " in every step" else words

    @property
    def while_others_wait(self) -> str:
        """Whom the others wait for in a slow step; empty if nobody comes late to it.

        >>> FindingWords(Finding(code="slow_step", cost_ns=1, share=0.1, ranks=(0,))).while_others_wait
        '; the others wait for rank 0'
        """
        if not self.finding.ranks:
            return ""
        return f"; the others wait for {self.ranks_named}"

    @property
    def in_iteration(self) -> str:
        """In which iteration something took longest, and how the others compare; empty if there is one alone.

        >>> evidence = {"iteration": 0, "iterations": 2, "recurs": False}
        >>> FindingWords(Finding(code="rollout", cost_ns=1, share=0.1, evidence=evidence)).in_iteration
        'in iteration 0, much less in the other, '
        """
        count = self.evidence.get("iterations")
        if count == 1:
            return ""
        others = "the other" if count == 2 else "the others"
        how_much = "about as much" if self.evidence.get("recurs") else "much less"
        if self.evidence.get("recurs") and count != 2:
            others = "most others"
        return f"in iteration {self['iteration']}, {how_much} in {others}, "

    @property
    def tokens_words(self) -> str:
        """Tokens of the rank and of the others; empty unless both are known and differ."""
        own = self.evidence.get("tokens")
        others = self.evidence.get("tokens_of_others")
        if not own or not others or own == others:
            return ""
        return f" ({own:,} tokens, the others {others:,})"

    @property
    def peak_place(self) -> str:
        """Where the host is at the peak of memory: cell, else phase."""
        op = self.evidence.get("op")
        stage = self.evidence.get("stage")
        microbatch = self.evidence.get("microbatch")
        if op is not None and stage is not None:
            return f", in {stage}{op}{microbatch} (stage {stage}, micro-batch {microbatch})"
        phase = self.evidence.get("phase")
        return f", in the {phase}" if phase else ""

    @property
    def recompute(self) -> str:
        """What to recompute to free memory, and what that costs."""
        module = self.evidence.get("recompute_module")
        freed_bytes = self.evidence.get("recompute_bytes")
        recompute_ns = self.evidence.get("recompute_ns")
        if module is None or not isinstance(freed_bytes, int) or not isinstance(recompute_ns, int):
            return "recompute activations"
        freed = size(freed_bytes)
        return f"recompute {module} (frees up to {freed} for {ms(recompute_ns)} per step)"

    @property
    def of_gpu(self) -> str:
        """The rank, if it is known."""
        return f"rank {self.finding.ranks[0]}" if self.finding.ranks else "the GPU"

    @property
    def failed_in(self) -> str:
        """Phase and source line of a request for memory; empty if neither is known."""
        origin = str(self.evidence.get("origin"))
        phase = f" by the {origin}" if origin in _PHASES_OF_REQUESTS else ""
        line = self.evidence.get("line")
        return f"{phase} at {line}" if line else phase

    @property
    def free_then(self) -> str:
        """What was free when a request for memory failed, and what the process was allowed."""
        if self.evidence.get("limit_bytes") is None:
            return f"{self['device_free_bytes']} free"
        return (
            f"a limit of this process (at least {self['limit_bytes']}) left no more, of "
            f"{self['device_free_bytes']} free on the GPU"
        )

    @property
    def why_out_of_memory(self) -> str:
        """Why the request failed."""
        cause = str(self.evidence.get("cause"))
        words = WORDS.memory_causes.get(cause)
        if words is None:
            category = WORDS.memory_categories.get(cause, cause)
            return f"most of it {category} ({self['category_bytes']})"
        if cause == "float32_copy":
            line = self.evidence.get("copied_from")
            made_at = "" if line is None else f" made at {line}"
            return words.format(copied_bytes=self["copied_bytes"], copied_line=made_at)
        return words.format_map(self)

    @property
    def remedies(self) -> str:
        """What would have made the request fit; empty if nothing is known."""
        named = []
        for prefix in ("remedy", "second_remedy"):
            code = self.evidence.get(prefix)
            if isinstance(code, str):
                freed_bytes = self.evidence.get(f"{prefix}_bytes")
                is_enough = self.evidence.get(f"{prefix}_is_enough")
                name = self.evidence.get(f"{prefix}_name")
                named.append(
                    MemoryRemedy(
                        code,
                        freed_bytes if isinstance(freed_bytes, int) else None,
                        is_enough if isinstance(is_enough, bool) else None,
                        name if isinstance(name, str) else None,
                    )
                )
        return remedies_sentence(named)

    @property
    def leak_place(self) -> str:
        """What leaks, as far as known: line, operator, module, stage and micro-batch."""
        evidence = self.evidence
        parts = []
        if evidence.get("line"):
            parts.append(f"allocated at {evidence['line']}")
        if evidence.get("operator"):
            parts.append(f"by {evidence['operator']}")
        if evidence.get("module"):
            parts.append(f"in {evidence['module']}")
        stage = evidence.get("stage")
        microbatch = evidence.get("microbatch")
        if stage is not None and microbatch is not None:
            parts.append(f"of micro-batch {microbatch} on stage {stage}")
        return f", {' '.join(parts)}" if parts else ""

    @property
    def until_full(self) -> str:
        """When the GPU is full; empty if that is not known."""
        steps = self.evidence.get("steps_until_full")
        return f"; the GPU is full in about {steps:,} steps" if isinstance(steps, int) else ""
