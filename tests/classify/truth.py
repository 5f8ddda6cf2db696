"""True labels of recordings, worked out from the programs by other means than tracekit's.

Reads PyTorch's JSON with the standard library alone. What is known comes from the frameworks' own
code: which functions a backward calls in which order, which operators only a forward calls, and
what a training loop does between its passes.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict

NODE = "autograd::engine::evaluate_function: "
FORWARD = re.compile(
    r"^aten::(linear|layer_norm|rms_norm|_fused_rms_norm|gelu|silu|softmax|scaled_dot_product_attention|embedding"
    r"|cross_entropy_loss|dropout|baddbmm)$|^(LinearWithGradAccumulationAndAsyncCommunication|FusedScaleMaskSoftmax)$"
)
ANY_GRADIENT = {"dgrad", "wgrad", "backward"}


class Recording:
    """Operators around every launch of one rank's recording, and the launches in order."""

    def __init__(self, path):
        with gzip.open(path, "rt") as file:
            events = [e for e in json.load(file)["traceEvents"] if e.get("ph") == "X"]
        gpu = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        self.gpu = sorted(gpu, key=lambda e: (e["ts"], e["args"]["correlation"]))
        calls = {}
        for e in events:
            if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e["args"]:
                calls.setdefault(e["args"]["correlation"], e)
        self.stacks = self._stacks(events, [calls[k["args"]["correlation"]] for k in self.gpu])
        self.at = [calls[k["args"]["correlation"]]["ts"] for k in self.gpu]
        self.order = sorted(range(len(self.gpu)), key=lambda i: self.at[i])

    @staticmethod
    def _stacks(events, calls):
        """The ranges around each call on its thread, the outermost first."""
        ranges = defaultdict(list)
        for e in events:
            if e.get("cat") in ("cpu_op", "user_annotation"):
                ranges[e["tid"]].append(e)
        calls_of_thread = defaultdict(list)
        for index, call in enumerate(calls):
            calls_of_thread[call["tid"]].append((call["ts"], index))
        stacks = [[] for _ in calls]
        for tid, points in calls_of_thread.items():
            rows = sorted(ranges[tid], key=lambda e: (e["ts"], -e["dur"]))
            stack, next_row = [], 0
            for time, index in sorted(points):
                while next_row < len(rows) and rows[next_row]["ts"] <= time:
                    row = rows[next_row]
                    stack = [e for e in stack if e["ts"] + e["dur"] >= row["ts"] + row["dur"]]
                    stack.append(row)
                    next_row += 1
                stacks[index] = [e for e in stack if e["ts"] + e["dur"] >= time]
        return stacks


def expected(recording, exchange=None):
    """For every GPU event the labels that are right, in order of start.

    None where the program does not tell.

    *exchange* labels a collective that is neither a pipeline's message nor a memory copy, by its
    arguments.
    """
    nodes = [i for i in recording.order if _node(recording.stacks[i])]
    first_forward = min(
        (recording.at[i] for i in recording.order if _calls(recording.stacks[i], FORWARD)),
        default=0,
    )
    ended = max((recording.at[i] for i in nodes), default=0)
    products, out = defaultdict(int), [None] * len(recording.gpu)
    backward = _recomputed(recording, nodes)
    for i in recording.order:
        event, stack = recording.gpu[i], recording.stacks[i]
        if "nccl" in event["name"].lower():
            out[i] = exchange(event, stack) if exchange else None
        elif event["cat"] != "kernel" or any(
            "fsdp::" in e["name"] or "FSDP::all_gather" in e["name"] for e in stack
        ):
            out[i] = {"memory"}
        elif _node(stack) and stack[-1]["name"] == "aten::_foreach_zero_":
            out[i] = {"optimizer"}  # a hook
        elif _node(stack):
            out[i] = {"recompute"} if i in backward else _gradient(event, stack, products)
        elif (done := _by_caller(stack)) is not None:
            out[i] = done
        elif (
            any(re.match(r"Optimizer\.(step|zero_grad)", e["name"]) for e in stack)
            or recording.at[i] > ended
        ):
            out[i] = {"optimizer"}
        elif recording.at[i] >= first_forward:
            out[i] = {"forward"}
    return out


def _node(stack):
    """The innermost node around a launch."""
    return next((e for e in reversed(stack) if e["name"].startswith(NODE)), None)


def _by_caller(stack):
    """Label work between passes: the loss's own gradient, gradients added to an optimizer's and set to zero."""
    names = [e["name"] for e in stack if e["cat"] == "cpu_op"]
    if "aten::ones_like" in names:
        return ANY_GRADIENT
    if names and names[-1] == "aten::_foreach_zero_":
        return {"optimizer"}
    own = [e for e in stack if e["name"].startswith("Optimizer.")]
    return {"wgrad"} if names == ["aten::add_"] and not own and _matrix(stack[-1]) else None


def _matrix(op):
    """Whether an operator works on more numbers than a loss or a count has."""
    return (
        max(
            (n for shape in op["args"].get("Input Dims", []) for n in shape if isinstance(n, int)),
            default=0,
        )
        > 1
    )


def _calls(stack, pattern):
    return any(pattern.match(e["name"]) for e in stack)


def _recomputed(recording, nodes):
    """Events that a node computes again: all that runs in it up to the last operator that only a forward calls."""
    last, parts = {}, defaultdict(list)
    for i in nodes:
        node = _node(recording.stacks[i])
        inside = recording.stacks[i][recording.stacks[i].index(node) + 1 :]
        key = (node["tid"], node["ts"])
        parts[key].append(i)
        # A compiled graph says nothing of its products; the forward's read a transposed weight, no
        # gradient does.
        product = "CompiledFunction" in node["name"] and recording.gpu[i]["name"].endswith("_TNN")
        if _calls(inside, FORWARD) or product or "CheckpointFunction" in node["name"]:
            last[key] = recording.at[i]
    return {
        i
        for key, rows in parts.items()
        if key in last
        for i in rows
        if recording.at[i] <= last[key]
    }


def _gradient(event, stack, products):
    """Labels that are right for work of a backward."""
    node = _node(stack)["name"].removeprefix(NODE)
    if (
        node.endswith("AccumulateGrad")
        or node.startswith("Embedding")
        or "GammaBeta" in event["name"]
    ):
        return {"wgrad"}
    if (
        not any(e["name"] in ("aten::mm", "aten::bmm") for e in stack)
        or "nvjet" not in event["name"]
    ):
        return ANY_GRADIENT
    key = id(_node(stack))
    count, products[key] = products[key], products[key] + 1
    orders = {  # as the formulas run their products
        "Bmm": ["dgrad", "dgrad"],
        "Baddbmm": ["dgrad", "dgrad"],
        # grad_output × weight, then grad_outputᵀ × input.
        "LinearWithGradAccumulation": [
            "dgrad",
            "wgrad",
        ],
        "Mm": ["wgrad", "dgrad"],  # that of the second operand first
        "Addmm": ["dgrad", "wgrad"],
    }
    order = next((order for name, order in orders.items() if node.startswith(name)), None)
    if order:
        return {order[count]}
    # There only the kernel says how its operands lie.
    compiled = {
        "NNN": {"dgrad"},
        "NTN": {"wgrad"},
    }
    return (
        compiled.get(event["name"][-3:], ANY_GRADIENT)
        if node.startswith("CompiledFunction")
        else ANY_GRADIENT
    )


def agreement(recording, labels, right):
    """Share of the time in which labels are right, of all the time the program tells of, and the worst mistakes."""
    good = judged_us = 0.0
    wrong = defaultdict(float)
    for event, label, allowed in zip(recording.gpu, labels, right, strict=True):
        if allowed is None:
            continue
        judged_us += event["dur"]
        if label in allowed:
            good += event["dur"]
        else:
            wrong[label, "/".join(sorted(allowed)), event["name"][:60]] += event["dur"]
    return good / judged_us, sorted(wrong.items(), key=lambda pair: -pair[1])[:5]
