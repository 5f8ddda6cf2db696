"""Phrases that several findings share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracekit._util.text import listing, rounded, short_ms
from tracekit.schema import LABEL_WORDS

ONCE_A_STEP = 0.75
"""Mean count per step from which something happens once a step; less is in one of two steps or
more."""
MAX_FINDING_STEPS_NAMED = 4
"""Steps that a sentence names."""
NEARLY_ALL = 0.9
"""Share from which a cause stands for the whole."""
GRAPHS_OF_VENDORS = {"amd": "HIP graphs", "nvidia": "CUDA graphs"}
QUEUES_OF_VENDORS = {
    "amd": "set `GPU_MAX_HW_QUEUES` to 8 or more",
    "nvidia": "set `CUDA_DEVICE_MAX_CONNECTIONS` to 8 or more",
}
"""How to get more hardware queues."""
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
    "fuse": "`torch.compile` what they are part of",
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


def framework_options(framework: str | None, topic: str) -> str:
    """Return the framework's own options for a label or a topic; empty if there are none.

    >>> framework_options("DDP", "dp_comm"), framework_options(None, "dp_comm")
    ('`bucket_cap_mb`', '')
    """
    return FRAMEWORK_OPTIONS.get(framework or "", {}).get(topic, "")


def switch(topic: str, *, framework: str | None, vendor: str | None) -> str:
    """Return what to switch on: the framework's own option, else the vendor's, else PyTorch's.

    >>> switch("narrow", framework="Megatron-LM", vendor="amd"), switch("narrow", framework=None, vendor=None)
    ('`--bf16`', '`torch.autocast`')
    """
    of_vendor = AMD_SWITCHES if vendor == "amd" else {}
    return framework_options(framework, topic) or of_vendor.get(topic) or SWITCHES[topic]


def graphs(vendor: str | None) -> str:
    """Return the vendor's name of graphs of kernels; one that is no vendor's where the GPU is not known."""
    return GRAPHS_OF_VENDORS.get(vendor or "", "captured graphs")


def more_queues(vendor: str | None) -> str:
    """Return how to give the GPU more hardware queues, in the vendor's words where the GPU is known."""
    return QUEUES_OF_VENDORS.get(vendor or "", "give the device more hardware queues")


def communication_log(vendor: str | None) -> str:
    """Return how NCCL and RCCL tell of links; empty where neither may be what communicates."""
    return " (`NCCL_DEBUG=INFO`)" if vendor else ""


def faster_links(saving_ns: int | None) -> str:
    """Return what links twice as fast would save; empty where no saving is predicted."""
    return "" if saving_ns is None else f", links twice as fast would save {short_ms(saving_ns)}"


def steps_named(steps: Sequence[int]) -> str:
    """Return steps by their numbers, the first few of many.

    >>> steps_named([21]), steps_named([21, 24])
    ('step 21', 'steps 21, 24')
    """
    numbers = listing(map(str, steps), most=MAX_FINDING_STEPS_NAMED)
    return f"{'step' if len(steps) == 1 else 'steps'} {numbers}"


def label_with_meaning(label: str) -> str:
    """Return a label after its meaning.

    >>> label_with_meaning("dp_comm")
    'data-parallel communication (dp_comm)'
    """
    return f"{LABEL_WORDS.get(label, label)} ({label})"


def how_often(calls_per_step: float, *, steps_marked: bool) -> str:
    """Return how often something happens: once a step, 8 times a step, in one of 4 steps.

    >>> how_often(8.2, steps_marked=True), how_often(0.25, steps_marked=True), how_often(1.0, steps_marked=False)
    ('8 times a step', 'in one of 4 steps', 'once in the recording')
    """
    if calls_per_step <= 0:
        return "now and then"
    if calls_per_step < ONCE_A_STEP:
        return f"in one of {round(1 / calls_per_step)} steps"
    times = round(calls_per_step)
    unit = "a step" if steps_marked else "in the recording"
    return f"once {unit}" if times == 1 else f"{times:,} times {unit}"


def in_module(module: str | None) -> str:
    """Return the module of the model in brackets; empty if it is not known."""
    return f" ({module})" if module else ""


def or_unknown(name: object) -> str:
    """Return a name as it is; that it is unknown if it is None."""
    return "unknown" if name is None else str(name)


def number(value: float | None) -> str:
    """Return a number; that it is unknown if it is None.

    >>> number(1.983), number(1200), number(None)
    ('1.98', '1,200', 'unknown')
    """
    if value is None:
        return "unknown"
    return rounded(value) if isinstance(value, float) else f"{value:,}"
