"""The texts of every finding: a function per code, or per code and case.

A text says what costs time and why, an advice what to do; both are one sentence without a full
stop. ``words['name']`` is a value of the finding's evidence as text; the properties of ``words``
are phrases made of several.
"""

from collections.abc import Callable
from typing import NamedTuple

from tracekit._util.text import short_ms
from tracekit.metrics.alternatives import ALTERNATIVES, Alternative
from tracekit.report.evidence_words import FindingWords
from tracekit.report.words import WORDS


class FindingTexts(NamedTuple):
    """What a finding says."""

    text: str
    """What costs time and why."""
    advice: str
    """What to do about it."""


MakeTexts = Callable[[FindingWords], FindingTexts]
MIN_SHARE_OF_LAUNCH_BOUND = 0.2
"""Share of the step that the GPU idles while the host launches, from which the whole step is said to be so."""
TEXTS: dict[tuple[str, str], MakeTexts] = {}
"""Functions by code and case; the one with an empty case is for every case without its own."""


def texts(code: str, case: str = "") -> Callable[[MakeTexts], MakeTexts]:
    """Enter a function as the one that makes the texts of a code, or of one of its cases."""

    def enter(function: MakeTexts) -> MakeTexts:
        TEXTS[code, case] = function
        return function

    return enter


# Beginnings and ends that several cases share.


def step_takes(words: FindingWords) -> str:
    return f"step {words['step']} takes {words['time_ns']}, the others {words['usual_ns']}"


def exposed(words: FindingWords) -> str:
    return f"{words['exposed_ns']} of {words.label_words} is exposed (no compute beside it)"


def exposed_because(words: FindingWords, reason: str) -> str:
    return f"{exposed(words)}, {words.mostly}because {reason}"


def longer_than_schedule(words: FindingWords, reason: str) -> str:
    longer = f"{words['part_ns']}{words.as_recorded} longer than {words['schedule']} needs"
    return f"the pipeline takes {longer}, because {reason}"


def wait_for_messages(words: FindingWords) -> str:
    longer = f"{words['part_ns']}{words.as_recorded} longer for each other's messages"
    return f"pipeline stages wait {longer} than {words['schedule']} needs"


def first_slow_kernel(words: FindingWords) -> str:
    return slowest_operator(words, f"{words['share_of_limit']} of the {words.limit_words}")


def slowest_operator(words: FindingWords, reached: str) -> str:
    operator = f"{words['op']}{words.in_module}"
    if words["op_gain_ns"] == words.cost:
        return f"{operator} is {words.cost} slower than the GPU allows: it reaches {reached}"
    return (
        f"kernels are {words.cost} slower than the GPU allows, {words['op_gain_ns']} of it in {operator}, "
        f"which reaches {reached}"
    )


def at_most(words: FindingWords) -> str:
    return f"at most {words['share_of_limit']} of the {words.limit_words}"


# Findings.


@texts("rollout", "tail")
def rollout_tail(words: FindingWords) -> FindingTexts:
    which = "the longest rollout (not always the same rank's)"
    if words.finding.ranks:
        which = f"the rollout of rank {words.rank}"
    return FindingTexts(
        f"{which} takes {words['longer_ns']} longer than the median",
        "cap or spread the longest sequences, or train on finished ones meanwhile",
    )


@texts("rollout", "late_start")
def rollout_late_start(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        f"{words.in_iteration}the rollout of rank {words.rank} starts {words['late_ns']} after that of rank "
        f"{words['first_rank']} and ends last",
        "see what its rollout process does before, and start all together",
    )


@texts("rollout", "between_roles")
def rollout_between_roles(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        f"no role runs in {words['idle_share']} of the iterations (longest in iteration "
        f"{words['longest_in_iteration']}: {words['longest_ns']})",
        "hand over to the next role earlier, or let roles overlap",
    )


@texts("weight_sync", "around_moving")
def weight_sync_around_moving(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        f"of the {words['sync_ns']} of a weight update only {words['moving_ns']} move weights",
        "collect and register buffers once for all updates, or while weights move",
    )


@texts("weight_sync", "above_ideal")
def weight_sync_above_ideal(words: FindingWords) -> FindingTexts:
    cause = words["cause"]
    late = f" (rank {words.rank})" if words.finding.ranks else ""
    return FindingTexts(
        f"{words['cause_ns']} of the {words['above_ideal_ns']} between moving the weights and its "
        f"ideal is {WORDS.update_causes.get(cause, 'not explained')}{late}",
        WORDS.update_remedies.get(cause, "look at the longest gaps of the update in the timeline"),
    )


@texts("compile")
def compile_in_step(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"torch.compile compiles inside the step for {words['host_ns']}",
        advice=(
            "mark the dimension that changes as dynamic (`dynamic=True`, `mark_dynamic`), run "
            "every shape once before, or cache compiled graphs"
        ),
    )


@texts("data_loading", "no_workers")
def data_loading_no_workers(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the GPU waits {words.cost} for batches: the DataLoader prepares them on the main "
            "thread"
        ),
        advice=(
            "give the DataLoader workers (`num_workers=4` or more, `persistent_workers=True`) "
            "and `pin_memory=True`"
        ),
    )


@texts("data_loading", "workers")
def data_loading_workers(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"the GPU waits {words.cost} for batches: the DataLoader's workers are too slow",
        advice=(
            "use more workers or a larger `prefetch_factor`, or make a sample cheaper to prepare"
        ),
    )


@texts("unused_parameters")
def unused_parameters(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"before each backward DDP searches the graph for unused parameters ({words['host_ns']} "
            f"of the CPU {words.per_step}), and the ranks tell each other which they used"
        ),
        advice=(
            "leave `find_unused_parameters=True` out if every parameter gets a gradient; if the "
            "same ones never do, set `static_graph=True`"
        ),
    )


@texts("pageable_copy")
def pageable_copy(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"copies from ordinary (pageable) memory make the CPU wait for {words['host_ns']}",
        advice=(
            "pin the memory (`pin_memory=True`) and copy with `non_blocking=True`, before the "
            "step needs the data"
            if words.is_pytorch
            else "pin the memory and copy it asynchronously, before the step needs the data"
        ),
    )


@texts("allocator")
def allocator(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the CPU allocates and frees GPU memory {words.how_often} ({words['host_ns']}, "
            f"mostly in {words['name']}), and the GPU waits"
        ),
        advice=(
            "remove `torch.cuda.empty_cache()` from the loop; with shapes that change, set "
            "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
            if words.is_pytorch
            else "allocate once before the loop, or take memory from a pool"
        ),
    )


@texts("allocator", "start_up")
def allocator_start_up(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the CPU allocates and frees GPU memory {words.how_often} ({words['host_ns']}, "
            f"mostly in {words['name']}); without marks of steps this may be the start of the program"
        ),
        advice=(
            "record a few steps after the first ones, and mark them (`profiler.step()` after each)"
        ),
    )


def host_stops(words: FindingWords) -> str:
    return (
        f"the CPU stops {words.how_often} to wait for the GPU{words.in_op}{words.called_from}; after "
        "each stop the GPU runs out of work"
    )


@texts("host_sync")
def host_sync(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=host_stops(words),
        advice="keep values on the GPU, and copy with `non_blocking=True`",
    )


@texts("host_sync", "value")
def host_sync_value(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=host_stops(words),
        advice=(
            "take `.item()`, `.cpu()`, `print(tensor)` and `if tensor` out of the loop: keep the value "
            "on the GPU, and log it every N steps"
        ),
    )


@texts("host_sync", "mask")
def host_sync_mask(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=host_stops(words),
        advice=(
            "avoid sizes that only the GPU knows: `torch.where` or a multiplication by the mask instead "
            "of boolean indexing and `nonzero`"
        ),
    )


@texts("host_sync", "scaler")
def host_sync_scaler(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"the `GradScaler` stops the CPU {words.how_often} to ask whether a gradient is infinite",
        advice="use bf16, which needs no scaler, or a fused optimizer, which takes the answer on the GPU",
    )


@texts("host_sync", "clipping")
def host_sync_clipping(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"gradient clipping stops the CPU {words.how_often} to check the norm",
        advice="leave out `error_if_nonfinite=True` and checks of the norm in Python, or check every N steps",
    )


@texts("host_sync", "copy")
def host_sync_copy(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=host_stops(words),
        advice="copy with `non_blocking=True` from or into pinned memory; `.cpu()` and `.tolist()` always wait",
    )


@texts("host_sync", "collective")
def host_sync_collective(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=host_stops(words),
        advice="let streams wait instead of the CPU (`async_op=True`, `work.wait()` without `blocking`)",
    )


@texts("host_sync", "explicit")
def host_sync_explicit(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"the CPU stops {words.how_often} in {words['name']}{words.called_from}; after each stop "
        "the GPU runs out of work",
        advice="leave explicit synchronisations out of the loop (timers: use events, or one every N steps)",
    )


@texts("host_sync", "in_range")
def host_sync_in_range(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=host_sync_explicit(words).text,
        advice=(
            "see what it waits for there: copies to the CPU (offload less, or into pinned memory), or a "
            "timer or check that can go"
        ),
    )


@texts("host_compute")
def host_compute(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"the GPU is idle for {words.cost} because the CPU computes, mostly {words['name']}",
        advice=(
            "move this work to the GPU, or run it while the GPU works on the next step (an "
            "optimizer on the CPU: offload less, or `fused`)"
        ),
    )


@texts("python")
def python(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"the GPU is idle for {words.cost} because the CPU runs Python that calls no PyTorch",
        advice=(
            "record with `with_stack=True` to see the function; do tokenizing and logging ahead "
            "of time or in another process"
        ),
    )


@texts("python", "no_operators")
def python_no_operators(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the GPU is idle for {words.cost} because the CPU does something between its calls of "
            "the GPU's library that was not recorded"
        ),
        advice=f"record what the CPU does: {words.recorders}",
    )


@texts("python", "stacks_not_read")
def python_stacks_not_read(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"the GPU is idle for {words.cost} because the CPU runs Python that calls no PyTorch",
        advice=(
            "write a page (`-o page.html`) or read the stacks (`analyze(..., stacks=True)`) to "
            "see the function"
        ),
    )


@texts("python", "outside_stacks")
def python_outside_stacks(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"the GPU is idle for {words.cost} because the CPU runs Python that calls no PyTorch",
        advice=(
            "do tokenizing, logging and file access ahead of time or in another process; the "
            "recorded stacks name no function there"
        ),
    )


@texts("python", "with_source")
def python_with_source(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"the GPU is idle for {words.cost} because the CPU runs Python, in {words.source}",
        advice="do this ahead of time, on another thread or process, or less often",
    )


@texts("launch_bound", "new_shapes")
def launch_bound_new_shapes(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"a plan is built for each new shape: {words['new_shapes_op']} takes many times as long on each new "
            f"shape of its inputs, {words['new_shapes_ns']} {words.per_step}"
        ),
        advice=(
            f"give {words['new_shapes_op']} few different shapes (padded lengths, a cache of fixed size that is used "
            "whole), or use another kernel that needs no plan (for attention FlashAttention: "
            "`torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`)"
        ),
    )


@texts("launch_bound")
def launch_bound(words: FindingWords) -> FindingTexts:
    at_times = "at times " if words.finding.share < MIN_SHARE_OF_LAUNCH_BOUND else ""
    return FindingTexts(
        text=(
            f"{at_times}the CPU takes longer to start the GPU's work than the GPU takes to run it: "
            f"{words['events_per_step']} kernels and copies {words.per_step}, "
            f"{words['mean_event_ns']} of GPU time each{words.on_new_shapes}"
        ),
        advice=f"{launch_less(words)}{words.keep_shapes}",
    )


def launch_less(words: FindingWords) -> str:
    """Return how to launch less, without what is there already; a graph holds no wait for the GPU."""
    if not words.is_pytorch:
        return f"use {words.graphs}, or fewer and larger kernels"
    switch = ' (`torch.compile(mode="reduce-overhead")`)' if words.evidence.get("vendor") else ""
    graphs = f"{words.graphs}{switch}"
    fused = "" if words.evidence.get("has_fused_optimizer") else "fused optimizers, or "
    if words.evidence.get("stops_to_wait"):
        return f"use {fused}larger batches; {graphs} once {words.waits_for_gpu} gone"
    return f"use {graphs}, {fused or 'or '}larger batches"


@texts("launch_bound", "under_graphs")
def launch_bound_under_graphs(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            "the CPU takes longer to start the GPU's work than the GPU takes to run it, although "
            f"{words.graphs} are used"
        ),
        advice="use fewer and larger graphs, and less Python between their launches",
    )


@texts("slow_step")
def slow_step(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{step_takes(words)}{words.while_others_wait}",
        advice=f"look at step {words['step']} in the timeline: what it did and the others did not",
    )


@texts("slow_step", "checkpoint")
def slow_step_checkpoint(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: it copies the weights to the host and writes them "
            f"(checkpoint){words.while_others_wait}"
        ),
        advice=(
            "save asynchronously (`torch.distributed.checkpoint.async_save`), from pinned "
            "memory, or less often"
        ),
    )


@texts("slow_step", "evaluation")
def slow_step_evaluation(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: it also runs {words['forward_events']} forward kernels without "
            f"a backward (evaluation){words.while_others_wait}"
        ),
        advice="leave evaluation out of the timed steps, or evaluate less often or elsewhere",
    )


@texts("slow_step", "compile")
def slow_step_compile(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: torch.compile compiles in it for "
            f"{words['extra_ns']}{words.while_others_wait}"
        ),
        advice="run every shape once before the loop, or mark changing dimensions as dynamic",
    )


@texts("slow_step", "data_loading")
def slow_step_data_loading(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: it waits {words['extra_ns']} longer for its "
            f"batch{words.while_others_wait}"
        ),
        advice="use more DataLoader workers or a larger `prefetch_factor`",
    )


@texts("slow_step", "python")
def slow_step_python(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: the host is in Python for {words['extra_ns']} (a garbage "
            f"collection, logging or file access){words.while_others_wait}"
        ),
        advice=(
            "record with `with_stack=True`; if it is the garbage collector, call `gc.freeze()` "
            "or collect at set times"
        ),
    )


@texts("slow_step", "python_with_stacks")
def slow_step_python_with_stacks(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: the host is in Python for {words['extra_ns']} (a garbage "
            f"collection, logging or file access){words.while_others_wait}"
        ),
        advice=(
            f"look at the Python functions of step {words['step']} in the timeline; if it is the "
            "garbage collector, call `gc.freeze()` or collect at set times"
        ),
    )


@texts("slow_step", "pageable_copy")
def slow_step_pageable_copy(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: copies of pageable host memory hold the host for "
            f"{words['extra_ns']} longer{words.while_others_wait}"
        ),
        advice="pin the memory (`pin_memory=True`) and copy with `non_blocking=True`",
    )


@texts("slow_step", "unused_parameters")
def slow_step_unused_parameters(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: DDP searches for unused parameters for {words['extra_ns']} "
            f"longer{words.while_others_wait}"
        ),
        advice="leave `find_unused_parameters=True` out if every parameter gets a gradient",
    )


@texts("slow_step", "allocator")
def slow_step_allocator(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: the host allocates and frees GPU memory for "
            f"{words['extra_ns']} longer{words.while_others_wait}"
        ),
        advice=(
            "run the largest shapes once before the loop, or set "
            "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`"
        ),
    )


@texts("slow_step", "host_sync")
def slow_step_host_sync(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: the host waits {words['extra_ns']} longer for the "
            f"GPU{words.while_others_wait}"
        ),
        advice=(
            f"look at step {words['step']} in the timeline: what the GPU did in it and in no other"
        ),
    )


@texts("slow_step", "host_compute")
def slow_step_host_compute(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: operators run on the CPU for {words['extra_ns']} "
            f"longer{words.while_others_wait}"
        ),
        advice="move this work to the GPU or out of the loop",
    )


@texts("slow_step", "launch_bound")
def slow_step_launch_bound(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{step_takes(words)}: the host takes {words['extra_ns']} longer to launch its "
            f"work{words.while_others_wait}"
        ),
        advice=(
            f"look at step {words['step']} in the timeline: operators that only it runs, or that "
            "it runs for the first time"
        ),
    )


@texts("repeated_reduction")
def repeated_reduction(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"gradients are reduced {words['times_per_step']} times per optimizer step",
        advice=(
            "reduce them once, after the last micro-batch: `no_sync()` with DDP, "
            "`set_requires_gradient_sync(False)` with FSDP2"
        ),
    )


@texts("exposed_comm")
def exposed_comm(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{exposed(words)}; the trace does not show why",
        advice="record the host's calls (`tracekit doctor` says how)",
    )


@texts("exposed_comm", "too_little_compute")
def exposed_comm_too_little_compute(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{words['exposed_ns']} of {words.label_words} is exposed{words.rate}; "
            f"{words.compute_to_hide_it}{words.faster_links}"
        ),
        advice=(
            f"check links and transport{words.communication_log}, or send fewer bytes "
            f"({words.fewer_bytes})"
        ),
    )


@texts("exposed_comm", "host_takes_as_long")
def exposed_comm_host_takes_as_long(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{exposed(words)}; hiding it saves less where the CPU takes as long to start a step as "
            "the GPU takes to run it"
        ),
        advice=(
            f"start it earlier or beside other compute{words.option}, and keep the CPU ahead (fewer "
            "kernels, less Python)"
        ),
    )


@texts("exposed_comm", "peer_late")
def exposed_comm_peer_late(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{exposed(words)}, {words['wait_share']} of that waiting for {words.late_rank}",
        advice=words.look_at_late_rank,
    )


@texts("exposed_comm", "same_stream")
def exposed_comm_same_stream(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=exposed_because(words, "it is queued on the compute stream"),
        advice=(
            "run it on a stream of its own (`async_op=True`) and let compute wait for its "
            f"event{words.option}"
        ),
    )


@texts("exposed_comm", "one_queue")
def exposed_comm_one_queue(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=exposed_because(words, "compute is queued behind it in the same hardware queue"),
        advice=f"{words.more_queues}, or launch the compute first",
    )


@texts("exposed_comm", "launched_late")
def exposed_comm_launched_late(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=exposed_because(words, "the CPU starts it late"),
        advice=f"launch it earlier: {words.graphs}, fewer small kernels, or less Python in the step",
    )


@texts("exposed_comm", "launched_late_under_graphs")
def exposed_comm_launched_late_under_graphs(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=exposed_because(words, f"the CPU starts it late although {words.graphs} are used"),
        advice="use fewer and larger graphs, and less Python between their launches",
    )


@texts("exposed_comm", "nothing_to_hide")
def exposed_comm_nothing_to_hide(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=exposed_because(words, "there is nothing else to compute at that time"),
        advice=(
            f"start it earlier or in smaller pieces, or beside another micro-batch{words.option}"
        ),
    )


@texts("exposed_comm", "compute_waited")
def exposed_comm_compute_waited(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=exposed_because(words, "the next compute waits for its result"),
        advice=f"start it earlier (prefetch), or move the wait to the first use{words.option}",
    )


@texts("exposed_comm", "unclear")
def exposed_comm_unclear(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{exposed(words)}; the trace does not show why",
        advice=(
            "look at its longest operations in the timeline: which compute comes next, and what "
            "that waits for"
        ),
    )


@texts("exposed_copy")
def exposed_copy(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=exposed(words),
        advice="copy earlier, on a stream of its own, from pinned memory",
    )


@texts("slow_rank")
def slow_rank(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the others wait {words.lateness}{words.in_label}{words.in_some_steps} for rank {words.rank}: the same "
            f"kernels take {words['ratio']} times as long"
        ),
        advice="check that GPU's clocks, temperature and power limit, and what else runs on it",
    )


@texts("slow_rank", "fewer_multiprocessors")
def slow_rank_fewer_multiprocessors(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the others wait {words.lateness}{words.in_label}{words.in_some_steps} for rank {words.rank}: the same "
            f"kernels take {words['ratio']} times as long ({words['multiprocessors']} SMs, others "
            f"{words['multiprocessors_of_others']})"
        ),
        advice=f"give rank {words.rank} as many SMs as the others (MIG profile, MPS percentage)",
    )


@texts("slow_rank", "own_steps")
def slow_rank_own_steps(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the steps of rank {words.rank} take {words['slower_by_ns']} longer than those of other "
            f"ranks: the same kernels take {words['ratio']} times as long"
        ),
        advice="check that GPU's clocks, temperature and power limit, and what else runs on it",
    )


@texts("slow_rank", "together")
def slow_rank_together(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the others wait for {words.ranks_named}, which are late together: the same kernels "
            f"take {words['ratio']} times as long"
        ),
        advice=(
            "mend all of them, one alone saves little: check clocks, temperature and power "
            "limit of these GPUs"
        ),
    )


@texts("uneven_work")
def uneven_work(words: FindingWords) -> FindingTexts:
    more_work = f"more work{words.tokens_words}"
    return FindingTexts(
        text=(
            f"the others wait {words.lateness}{words.in_label}{words.in_some_steps} for rank {words.rank}"
            f"{words.because(f'which has {more_work}', f'it has {more_work}')}"
        ),
        advice="give all ranks the same number of tokens (sort or pack by length), or move layers",
    )


@texts("uneven_work", "together")
def uneven_work_together(words: FindingWords) -> FindingTexts:
    more_work = f"more work{words.tokens_words}"
    return FindingTexts(
        text=(
            f"the others wait {words.lateness}{words.in_label}{words.in_some_steps} for {words.ranks_named}"
            f"{words.because(f'which have {more_work}', f'they have {more_work}')}"
        ),
        advice=(
            "give all ranks the same number of tokens (sort or pack by length), or move layers; "
            "one rank alone saves little"
        ),
    )


@texts("late_host")
def late_host(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the others wait {words.lateness}{words.in_label}{words.in_steps} for rank {words.rank}"
            f"{words.because('whose process starts its work late', 'its process starts its work late')}"
        ),
        advice="see what that process does then: data loading, a checkpoint, garbage collection",
    )


@texts("late_host", "together")
def late_host_together(words: FindingWords) -> FindingTexts:
    late = "start their work late together"
    return FindingTexts(
        text=(
            f"the others wait {words.lateness}{words.in_label}{words.in_steps} for {words.ranks_named}"
            f"{words.because(f'whose processes {late}', f'their processes {late}')}"
        ),
        advice=(
            "mend all of them, one alone saves little: see what they do then (data loading, a "
            "checkpoint)"
        ),
    )


@texts("slow_link")
def slow_link(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"transfers of rank {words.rank} take {words['ratio']} times as long as others of "
            "their size"
        ),
        advice=f"check the links of rank {words.rank} and its place in the topology",
    )


@texts("slow_link", "together")
def slow_link_together(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"transfers of {words.ranks_named} take {words['ratio']} times as long as others of "
            "their size"
        ),
        advice=(
            "check the links of these ranks and their place in the topology; one alone saves little"
        ),
    )


@texts("schedule_gap")
def schedule_gap(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=longer_than_schedule(words, "other work runs between the stages' computations"),
        advice="shorten or move the work between the stages' computations",
    )


@texts("schedule_gap", "order")
def schedule_gap_order(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=longer_than_schedule(words, "operations run in another order"),
        advice=f"run the operations in the order of {words['schedule']}",
    )


@texts("schedule_gap", "imbalance")
def schedule_gap_imbalance(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=longer_than_schedule(words, "its stages take unequal time"),
        advice="move layers between stages until they take the same time",
    )


@texts("schedule_gap", "variation")
def schedule_gap_variation(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=longer_than_schedule(words, "micro-batches take unequal time"),
        advice="give every micro-batch the same work",
    )


@texts("schedule_gap", "p2p")
def schedule_gap_p2p(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=wait_for_messages(words),
        advice="check the links; send and receive earlier (`isend`, `irecv`)",
    )


@texts("schedule_gap", "p2p_and_host")
def schedule_gap_p2p_and_host(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{wait_for_messages(words)}, and the CPU takes nearly as long for a step",
        advice=(
            "do both: send and receive earlier and asynchronously (`isend`, `irecv`), which "
            f"alone saves only {words['messages_alone_ns']}, and start kernels earlier "
            f"({words.graphs}, less Python)"
        ),
    )


@texts("schedule_gap", "p2p_transfer")
def schedule_gap_p2p_transfer(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{wait_for_messages(words)}, and there is too little compute to hide "
            f"them{words.faster_links}"
        ),
        advice=(
            f"check links and transport{words.communication_log}, or send fewer bytes (a narrower "
            "type, fewer chunks per rank)"
        ),
    )


@texts("schedule_gap", "offload")
def schedule_gap_offload(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=longer_than_schedule(words, "compute stops for copies between GPU and host"),
        advice="copy earlier, or less",
    )


@texts("schedule_gap", "host")
def schedule_gap_host(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=longer_than_schedule(words, "the CPU starts its work late"),
        advice=f"start it earlier: {words.graphs}, fewer small kernels, or less Python in the step",
    )


@texts("schedule_gap", "host_under_graphs")
def schedule_gap_host_under_graphs(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=longer_than_schedule(
            words, f"the CPU starts its work late although {words.graphs} are used"
        ),
        advice="use fewer and larger graphs, and less Python between their launches",
    )


@texts("schedule_gap", "own_bubble")
def schedule_gap_own_bubble(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"even without delays {words['schedule']} leaves each stage idle for {words.cost} "
            f"({words['bubble_share']} of its ideal), while the pipeline fills and drains (its "
            "bubble, part of exposed pp_comm and idle)"
        ),
        advice="more micro-batches, more chunks per rank, or another schedule (`--what-if`)",
    )


@texts("slow_kernel")
def slow_kernel(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=first_slow_kernel(words),
        advice="let `torch.compile` fuse it, and keep its inputs contiguous",
    )


@texts("slow_kernel", "misaligned")
def slow_kernel_misaligned(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{first_slow_kernel(words)}, because its sizes are no multiples of 8",
        advice="pad sizes to multiples of 64 (vocabulary, hidden size, head count)",
    )


@texts("slow_kernel", "skinny")
def slow_kernel_skinny(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{first_slow_kernel(words)}, because one size of the product is small (it moves more than "
            "it computes)"
        ),
        advice=(
            "fuse it with what is before or behind it, batch several into one, or let "
            "`torch.compile` do so"
        ),
    )


@texts("slow_kernel", "few_tiles")
def slow_kernel_few_tiles(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{first_slow_kernel(words)}, because its result has fewer tiles than the GPU has "
            "multiprocessors"
        ),
        advice=(
            "use a larger batch, or join products into one (a fused QKV projection, grouped "
            "products)"
        ),
    )


@texts("slow_kernel", "short_sequence")
def slow_kernel_short_sequence(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{first_slow_kernel(words)}, because its sequences are short",
        advice=(
            "pack several sequences into one (variable-length attention), or use a larger batch"
        ),
    )


@texts("slow_kernel", "attention")
def slow_kernel_attention(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=first_slow_kernel(words),
        advice=f"use another attention kernel{words.other_attention_kernels}",
    )


@texts("slow_kernel", "depthwise")
def slow_kernel_depthwise(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{slowest_operator(words, at_most(words))}, because each channel "
            "is convolved by itself (it moves more than it computes)"
        ),
        advice=(
            "use `channels_last` and a 16-bit type, or let `torch.compile` fuse it with what is "
            "behind it"
        ),
    )


@texts("slow_kernel", "channels")
def slow_kernel_channels(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{slowest_operator(words, at_most(words))}, because its numbers of "
            "channels are no multiples of 8"
        ),
        advice=(
            "pad the channels to multiples of 8 (an image's 3 to 4 or 8), use `channels_last` "
            "and a 16-bit type"
        ),
    )


@texts("slow_kernel", "convolution")
def slow_kernel_convolution(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=slowest_operator(words, at_most(words)),
        advice="use `channels_last`, a 16-bit type and `torch.backends.cudnn.benchmark = True`",
    )


@texts("slow_kernel", "few_tokens")
def slow_kernel_few_tokens(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{first_slow_kernel(words)}, because its experts get few tokens each (it moves more than "
            "it computes)"
        ),
        advice=(
            "send more tokens through each call (a larger batch), or put fewer experts on a GPU"
        ),
    )


@texts("slow_kernel", "experts")
def slow_kernel_experts(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=first_slow_kernel(words),
        advice="tune its kernel for these sizes, or spread tokens evenly over experts",
    )


@texts("slow_kernel", "optimizer")
def slow_kernel_optimizer(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the optimizer's kernels are {words.cost} slower than the GPU allows: {words['op']} reaches "
            f"{words['share_of_limit']} of the {words.limit_words}"
        ),
        advice="use the fused optimizer (`fused=True`)",
    )


@texts("slow_kernel", "copy")
def slow_kernel_copy(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"kernels are {words.cost} slower than the GPU allows, {words['op_gain_ns']} of it in copies "
            "on the device: they reach "
            f"{words['share_of_limit']} of the {words.limit_words}"
        ),
        advice="avoid them (`contiguous`, `cat`, `clone`)",
    )


@texts("slow_kernel", "product")
def slow_kernel_product(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=first_slow_kernel(words),
        advice='try another kernel (`torch.compile(mode="max-autotune")`) or a larger batch',
    )


@texts("out_of_memory")
def out_of_memory(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{words.of_gpu} ran out of memory: {words['requested_bytes']} were asked "
            f"for{words.failed_in} while {words['allocated_bytes']} were in use and "
            f"{words.free_then}; {words.why_out_of_memory}"
        ),
        advice=words.remedies or "take smaller micro-batches, or recompute activations",
    )


@texts("memory_peak", "nearly_full")
def memory_peak_nearly_full(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"rank {words.rank} reserves {words['reserved_bytes']} of {words['capacity_bytes']}; "
            f"at its peak it holds {words['peak_bytes']}{words.peak_place}, most of it "
            f"{words.category_words} ({words['category_bytes']})"
        ),
        advice=(
            f"{words.recompute}, or take smaller micro-batches or a schedule with fewer of them "
            "in flight (`--what-if` says what each needs)"
        ),
    )


@texts("memory_peak", "above_schedule")
def memory_peak_above_schedule(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"rank {words.rank} holds the activations of {words['in_flight']} micro-batches at "
            f"once, and its schedule asks for {words['ideal_in_flight']}"
        ),
        advice=(
            "free outputs and losses of a micro-batch when its backward has ended, and look for "
            "what still refers to them"
        ),
    )


@texts("memory_peak", "outlived")
def memory_peak_outlived(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"rank {words.rank} holds {words['outlived_bytes']} of activations at its peak whose "
            "backward has ended"
        ),
        advice=(
            "drop references to outputs and losses of a micro-batch when its backward has ended "
            "(keep `loss.detach()`)"
        ),
    )


@texts("fragmentation")
def fragmentation(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"rank {words.rank} reserves {words['reserved_bytes']}, of which "
            f"{words['fragmented_bytes']} ({words['fragmented_share']}) are free in pieces; "
            f"{words['request_bytes']} did not fit while {words['free_bytes']} were "
            f"free{words.at_line}"
        ),
        advice=(
            "set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, allocate what stays before "
            "what comes and goes, or keep shapes the same"
        ),
    )


@texts("leak")
def leak(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"rank {words.rank} leaves {words['step_bytes']} behind in every "
            f"step{words.leak_place}{words.until_full}"
        ),
        advice=(
            "something keeps these tensors: detach what is stored (`.detach()`, `.item()`), and "
            "clear lists and caches between steps"
        ),
    )


# Changes of types, kernels and calls.


@texts("precision", "tf32")
def precision_tf32(words: FindingWords) -> FindingTexts:
    further_ns = words.evidence.get("further_ns")
    further = ""
    if isinstance(further_ns, int):
        further = f"; {words['further']} instead ({words.switch('narrow')}) would save {short_ms(further_ns)}"
        work_ns = words.evidence.get("work_ns")
        if isinstance(work_ns, int | float) and further_ns > work_ns:
            further += ", because other kernels get faster, too"
    return FindingTexts(
        text=f"matrix products in float32 run without tensor cores: {words['work_ns']} of GPU time",
        advice=f"let them use TF32, slightly less precise ({words.switch('tf32')}){further}",
    )


@texts("precision")
def precision_narrow(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"matrix products and attention run in float32: {words['work_ns']} of GPU time",
        advice=f"compute in {words['change_to']} ({words.switch('narrow')}); weights and losses may stay in float32",
    )


@texts("precision", "fp64")
def precision_fp64(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"kernels compute in float64, first {words['op']}: {words['work_ns']} of GPU time",
        advice="use float32: NumPy's arrays and `torch.from_numpy` are float64 unless a `dtype` is given",
    )


@texts("precision", "fixed_weights")
def precision_fixed_weights(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"autocast casts to 16 bits {words['kernels_per_step']} times {words.per_step}, weights that do not "
            f"change among them ({words.work})"
        ),
        advice="keep these weights in 16 bits (`model.to(torch.bfloat16)`)",
    )


@texts("precision", "trained_weights")
def precision_trained_weights(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"autocast casts weights to 16 bits {words['kernels_per_step']} times {words.per_step} more often than "
            f"they change ({words.work})"
        ),
        advice=(
            "use fewer and larger micro-batches, or keep the weights in 16 bits and a copy in float32 for the "
            "optimizer"
        ),
    )


@texts("attention")
def attention_written_out(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"attention runs in separate kernels: {words['kernels_per_step']} kernels and copies "
            f"{words.per_step} read or write "
            f"a matrix of tokens × tokens ({words.work})"
        ),
        advice=f"use one fused kernel ({words.switch('attention')}), with `is_causal` instead of a causal mask",
    )


@texts("attention", "efficient")
def attention_efficient(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"attention takes {words['work_ns']} in the memory-efficient kernel, although "
            "FlashAttention takes its inputs"
        ),
        advice="allow it: `torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`, or leave the choice to PyTorch",
    )


@texts("unfused")
def unfused(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{words['kernels_per_step']} kernels {words.per_step} only move memory, each reading what the "
            f"last one wrote ({words['what']}; {words.work})"
        ),
        advice=f"fuse them: {words.switch('fuse')}",
    )


@texts("unfused", "loss")
def unfused_loss(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the loss reads and writes its logits over the whole vocabulary in "
            f"{words['kernels_per_step']} kernels ({words.work})"
        ),
        advice=f"fuse it: {words.switch('loss')}",
    )


@texts("recompute")
def recompute(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"forwards are computed again in the backward: {words.work}",
        advice=f"keep the activations of more layers, as far as memory allows ({words.switch('recompute')})",
    )


@texts("small_copies")
def small_copies(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{words['kernels_per_step']} small copies from the host {words.per_step}, one by one",
        advice="put them into one pinned tensor, copy it once with `non_blocking=True`, and split it on the GPU",
    )


@texts("optimizer")
def optimizer_loop(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the optimizer goes parameter by parameter: {words['kernels_per_step']} kernels {words.per_step} "
            f"({words.work})"
        ),
        advice="let it update all parameters at once (`fused=True`, or `foreach=True` where there is no fused one)",
    )


@texts("optimizer", "foreach")
def optimizer_foreach(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"the optimizer reads and writes all parameters for each of its operations ({words.work})",
        advice="use its fused kernel (`fused=True`)",
    )


@texts("optimizer", "clipping")
def optimizer_clipping(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"gradients are clipped parameter by parameter: {words['kernels_per_step']} kernels {words.per_step} "
            f"({words.work})"
        ),
        advice="clip all at once: `clip_grad_norm_` with `foreach=True`, on gradients that are all on the GPU",
    )


@texts("layout")
def layout(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"images have their channels first: conversions around convolutions and batch norms take "
            f"{words['work_ns']}"
        ),
        advice=f"put channels last: {words.switch('layout')}",
    )


@texts("slow_kernel", "padding")
def slow_kernel_padding(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"products with sizes that are no multiples of 8 take {words['work_ns']}, first {words['op']}",
        advice="pad these sizes to multiples of 64 (vocabulary, hidden size, heads)",
    )


@texts("busy_cpu")
def busy_cpu(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            "operators that usually take microseconds stand still for milliseconds again and again: "
            "other processes share the CPU"
        ),
        advice=(
            "give the loop cores of its own: fewer DataLoader workers and threads (`OMP_NUM_THREADS`), "
            "other jobs elsewhere, no limit of CPU time"
        ),
    )


@texts("small_messages")
def small_messages(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"gradients are reduced in {words['kernels_per_step']} messages {words.per_step}, too small for the "
            f"link's bandwidth ({words['work_ns']})"
        ),
        advice=f"join them: {words.switch('messages')}",
    )


@texts("late_reduction")
def late_reduction(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"gradients are reduced only when the backward has ended: {words['work_ns']} of communication",
        advice=f"reduce them while the backward runs: {words.switch('reduction')}",
    )


@texts("exposed_comm", "gathered_twice")
def exposed_comm_gathered_twice(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"parameters are gathered again for the backward: {words['work_ns']} of communication",
        advice="keep them after the forward where memory allows (`reshard_after_forward=False`)",
    )


def _texts_of(alternative: Alternative) -> MakeTexts:
    """Return the function that makes the texts of an entry of the catalogue."""

    def make(words: FindingWords) -> FindingTexts:
        return FindingTexts(alternative.says.format_map(words), alternative.advises)

    return make


for _alternative in ALTERNATIVES:
    texts(_alternative.code, _alternative.case)(_texts_of(_alternative))
