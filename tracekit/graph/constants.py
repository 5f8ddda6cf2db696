"""Constants of predictions: every figure that was set rather than measured in the run at hand.

Each names its source and the date on which it was set. "The eleven sets", "the later sets" and "the
pairs of changes" are the recordings that docs/maintainers/predictions.md lists with all figures: PyTorch's schedules
of 2 to 4 ranks that share an H200, with NCCL over loopback sockets. A figure "by choice" rests on
no recording: it says how much is computed or shown, or where an answer is refused.
"""

Estimate = tuple[float, float, float]
"""Low, likely and high value of a quantity."""

LOW, MIDDLE, HIGH = range(3)
"""Indices into an estimate."""

QUANTILES: Estimate = (0.25, 0.5, 0.75)
"""Quantile of the times of equal ops and messages at each level. By choice, 2026-11-15."""

# ---- Machine: messages, and compute beside them.

MIN_KERNELS_TO_MEASURE_SLOWDOWN = 30
"""Kernels that must have run beside messages before a slowdown is computed from them. By choice,
2026-11-15."""

UNKNOWN_SLOWDOWN: Estimate = (1.0, 1.4, 2.0)
"""Slowdown of compute if none ran beside messages: a kernel that fills the GPU takes as long as
before, or twice. The likely value is a guess between these bounds, 2026-11-15."""

MIN_SHARE_BESIDE_MESSAGES_TO_MEASURE = 0.2
"""Share of the time of ops beside messages of their rank from which a run shows what that costs
ranks on one GPU. By choice, 2026-11-18: schedules that hide messages have 0.4 to 0.55, those that
do not 0.02 to 0.1."""

UNKNOWN_COST_TO_OTHER_RANKS = 0.5
"""Cost of a message beside compute to each other rank on the same GPU, over its cost to the rank
itself, where the run does not show it: another rank loses nothing, or as much. The value is a guess
between these bounds, 2026-11-18; runs that show it have 0.3 to 1. It is also how uncertain both
costs are taken to be before the run is looked at."""

MAX_FIT_ROUNDS = 20
"""Rounds of the fit of costs on a shared GPU, which settles in a few. By choice, 2026-11-18."""

MAX_SLOWDOWN = 4.0
"""Largest slowdown of compute beside messages that is believed; more is an outlier. By choice,
2026-11-15."""

SLOWDOWN_SPREAD = 0.1
"""Distance of the low and the high slowdown from the measured one, as a share of what is above 1.
By choice, 2026-11-15."""

UNKNOWN_DUPLEX: Estimate = (1.0, 1.3, 2.0)
"""Duplex factor if no two messages crossed: a link that carries both ways takes no longer, or as
long as both. The likely value is a guess between these bounds, 2026-11-15."""

MAX_SHARE_OF_EARLY_RECEIVES = 0.1
"""Share of receives that start before the compute launched before them has ended, above which none
wait for compute. By choice, 2026-11-15."""

# ---- Ops: GPU and host times.

SPLIT_GPU_FACTORS = ((1.0, 1.0), (1.05, 1.2), (1.1, 1.4))
"""GPU time of I and of W in a run that splits its backwards, over their shares of a whole backward
by kernel labels; low, likely and high. Work that both halves need (the statistics of a norm, for
example) runs twice. Set with the first recorded set in view, 2026-11-15."""

SPLIT_HOST_FACTORS = ((0.6, 1.2), (0.65, 1.4), (0.7, 1.75))
"""Host time of I and of W over that of a whole backward; low, likely and high. Used if only whole backwards ran.

PyTorch calls its autograd engine once for every group of parameters, so splitting costs the host
more than the GPU. A run that does not split cannot show by how much. From 90 pairs of the first
three sets, 2026-11-16.
"""

SPLIT_SEARCH_SHARE = 0.16
"""Host time before an I beyond that before a whole backward, over the host time of that backward:
PyTorch looks for the groups of parameters in the graph. From 90 pairs of the first three sets,
2026-11-16."""

SWITCH_HOST_FACTOR = 1.1
"""Host time of a forward after another op over that of one after a forward: PyTorch runs backwards
on a thread of their own, and the caches of the forward's thread have to be filled again. Median of
208 ranks in 42 host-bound recordings of the eleven sets (quartiles 1.02 and 1.19), 2026-11-17."""

MIN_SHARE_OF_LAUNCHES_AFTER_MESSAGES = 0.9
"""Share of launches after a message kernel that must come after its end for the host to count as
waiting for it. By choice, 2026-11-16."""

# ---- Predictions of schedules, and their ranges.

MAX_OPS_TO_SIMULATE = 4_000
"""Ops of a schedule up to which it is simulated message by message. By choice, 2026-11-15."""

MAX_REPLAY_ERROR = 0.08
"""Error of the simulated makespan of the run itself, as a share of the measured one, up to which
others are given. By choice, 2026-11-16: the replays of all samples are nearer."""

MAX_SIMULATED_STEPS = 3
"""Steps simulated one after the other at most: a rank begins a step when it has ended the one
before, and its host may run ahead. By choice, 2026-11-16."""

MAX_CHANGE_OF_STEADY_STEP = 0.002
"""Change of the makespan from one step to the next, as a share, up to which steps count as equal.
By choice, 2026-11-15."""

HOST_SPEED_FACTOR = 1.4
"""Factor by which the same host may be faster or slower in another recording of the same program.
The largest seen between recordings of one op in the first two sets, 2026-11-15."""

MIN_ERROR_SHARE = 0.11
"""Distance of the range's ends from the prediction, as a share of it, if nothing else were unknown:
two recordings of one program on one machine differ by that much. From the later sets (140 pairs),
2026-11-17."""

# ---- Rows of --what-if.

MIN_SAVED_SHARE_TO_PROPOSE = 0.01
"""Share of the makespan that another split of layers, or of the step that a change, must save to be
proposed. By choice, 2026-11-15."""

MAX_UNITS_TO_SEARCH = 4_000
"""Units of work of a schedule up to which schedules whose order is searched for are tried. By
choice, 2026-11-15."""

MICROBATCHES_PER_RANK_TO_TRY = (1, 2, 4, 8)
"""Micro-batches per rank that the curve over micro-batches has. By choice, 2026-11-15."""

CHUNKS_TO_TRY = (1, 2, 3, 4)
"""Chunks per rank that the curve over chunks has. By choice, 2026-11-15."""

MAX_OPS_OF_CURVE_POINT = 600
"""Ops of a schedule up to which it is a point of the curves over micro-batches and chunks; there
are many points. By choice, 2026-11-15."""

# ---- Changes of recorded events, and their ranges.

NEAREST_FORMS_NAMED = 3
"""Forms of a change that the error about an unknown one names. By choice, 2026-11-19."""
MAX_LISTED_CHANGES = 5
"""Changes that are listed if none was asked for, those that save most. By choice, 2026-11-16."""

MAX_PATH_PARTS = 6
"""Parts of the new critical path that are kept, the largest. By choice, 2026-11-16."""

MIN_VARIATION = 0.05
"""Smallest half width of a range, as a share of the prediction. By choice, 2026-11-16."""

LINK_VARIATION = 0.15
"""Share by which the transfers of a run differ from one recording to the next. From the pairs of
changes, 2026-11-17."""

HOST_VARIATION = 0.2
"""Share by which the times of a host differ from one recording to the next. From the pairs of
changes, 2026-11-17."""

LANE_BINS = 240
"""Parts of a step that its lanes are drawn in. By choice, 2026-11-16."""

QUEUE_ENTRIES = 1_024
"""Launches of one stream that CUDA's queue holds: a further one waits until the first of them has begun.
From CUDA's documentation, 2026-11-19; recordings in which more are seen to wait have more."""

# ---- Cost of the recording: the step without PyTorch's profiler.
#
# "The loops of the recording's cost" (docs/maintainers/predictions.md): 138 recordings of 77 loops, timed with
# and without the profiler, on one H200, and a log of eight H100. Held out by loop the median error was
# 5 % of the mean of the free timings before and after each recording. The cost of a call was fitted
# anew to the first timing, of a process that was never profiled (54 recordings, 2026-11-19).
# ``benchmarks/recording_cost.py`` measures them anew on another machine.

OPERATOR_COST_NS = 1_750
"""Time that recording an operator adds to its thread. From the loops of the recording's cost,
2026-11-18."""

SHAPES_COST_NS = 500
"""Time that the shapes of its inputs add to that. From the loops of the recording's cost,
2026-11-18."""

GPU_CALL_COST_NS = 11_000
"""Time that recording a call that queues work on the GPU adds to its thread, over the same call in a process
that was never profiled: some of it stays once a process has been. A call that queues nothing costs what it took.
From 19 host-bound recordings of 19 loops (held out by loop, with the host's state by thread and window: the mean
error is 6 %, of 8 µs for every call and one state for all threads it was 10 %), 2026-11-19."""

GRAPH_NODE_COST_NS = 1_300
"""Time that recording the work of a CUDA graph adds to the call that launches it, per kernel or copy.
From five recorded graphs of 143 to 676, which take 1.5 to 2.9 µs for each in that call; without the
profiler it is at most 0.2. 2026-11-18."""

PYTHON_FRAME_COST_NS = 250
"""Time that recording a Python frame adds to its thread. From the 17 recordings with stacks of the
loops of the recording's cost, 2026-11-18."""

LAUNCH_CALL_NS = 6_500
"""Median duration of a recorded launch call where these costs hold. From the loops of the
recording's cost, 2026-11-18."""

TRIVIAL_OPERATOR_NS = {
    "aten::as_strided": 570,
    "aten::empty": 3_900,
    "aten::empty_strided": 4_600,
}
"""Median durations of operators that always do the same, where launch calls take that. From 120 threads of
60 recordings of PyTorch 2.11, 2026-11-19."""

LAUNCH_STATE_EXPONENT = 1.45
"""Power of a launch call's duration with which the operators beside it get slower. From the same threads
(correlation 0.83), 2026-11-19."""

HOST_STATE_EXPONENT = 1.3
"""Power of trivial operators' durations with which the costs grow: recording writes more memory than these do.
From the 19 host-bound recordings (1.15 and 1.5 are within 0.2 % of it), 2026-11-19."""

HOST_STATE_RANGE = (0.4, 2.5)
"""Durations of trivial operators over the usual ones that are believed; longer ones do something else as
well. By choice, 2026-11-19: threads of recordings have 0.45 to 1.9."""

TRIVIAL_EVENTS_IN_WINDOW = 101
"""Trivial events whose median tells how fast a thread is at the time. From the 19 host-bound recordings (51 does
as well, 301 worse), 2026-11-19."""

MIN_TRIVIAL_EVENTS = 40
"""Trivial events of a thread from which their median is taken. By choice, 2026-11-19."""

MIN_FREE_HOST_SHARE = 0.15
"""Smallest share of the recorded time of the host between two launches that is left without the
profiler. From the first six loops of the recording's cost, 2026-11-18."""

FREE_COST_RANGE = (1.1, 0.8)
"""Parts of the recording's likely cost that are given back for the low and the high end of the
range of the step without the profiler. From the loops of the recording's cost and 37 others: with these and the
next three 97 % of 66 lie in ranges of 29 % (mean), 2026-11-19."""

FREE_HOST_RANGE = (0.93, 1.0)
"""Time of the host at the low and the high end of that range, over that in its fast and its slow state. From
the same recordings, 2026-11-19."""

HOST_STATE_QUANTILES = (0.1, 0.9)
"""Share of the host's time in which it was faster than in its fast, and its slow, state. By choice, 2026-11-19."""

WORK_STATE_EXPONENT = 0.5
"""Power of trivial operators' durations with which the host's own work grows at the ends of that range. The likely
step takes the work as recorded: dividing it by the state makes loops that were held out no nearer (mean error 6.2 %
with a power of 0.25, 7.3 with 0.5, for 6.1). From the 19 host-bound recordings, 2026-11-19."""

FREE_HOST_RANGE_WITHOUT_STATE = (0.85, 1.05)
"""Time of the host at the ends of that range, over the likely one, where its state is not known. From the 54
recordings that the cost of a call was fitted to first, 2026-11-19."""

MIN_FREE_VARIATION = 0.05
"""Distance of the range's ends from the modelled step, as a share of it, if the recording cost
nothing. From the loops of the recording's cost, 2026-11-18."""

MAX_SHARE_ABOVE_GPU_LIMIT = 0.05
"""Modelled step over the step of a host that never makes the GPU wait, less 1, up to which the GPU
is the limit. By choice, 2026-11-18."""

FREE_RANGE_OF_GPU_LIMIT = (0.96, 1.05)
"""Ends of the range where the GPU is the limit, over the modelled step. From the given loops, of which 25 are so and
lie within 3 %; of 20 recorded later, which decided nothing, the furthest was 4.3 % off, 2026-11-20."""

MAX_FREE_RANGE_WIDTH = 0.5
"""Largest width of the range, as a share of the modelled step: more says nothing. By choice, 2026-11-20: with it and
the range where the GPU is the limit, 98 % of the 66 given loops lie in ranges of 28 % (mean)."""

MIN_FACTOR = 1e-6
"""Factor of an event that disappears, to compare its range with. By choice, 2026-11-18."""

MIN_SHARE_OF_CARRIED_COPIES = 0.5
"""Share of the time of pageable copies beside operators on the CPU, above which these copies go with
them. By choice, 2026-11-18."""

MAX_LAUNCH_MEDIANS = 10
"""Time of a launch that disappears over the median of all that do, above which it holds other work.
By choice, 2026-11-18."""

ROUNDING_SHARE = 1e-4
"""Share of the step by which two predictions of equal changes may differ, because times are rounded
event by event. By choice, 2026-11-18."""
RANKS_LOADED_TOGETHER = 8
"""Ranks whose events are joined together: most of the time is that of calls, and each rank takes memory.
By choice, 2026-11-19."""

MAX_HOLE_SHARE = 0.5
"""Share of the critical path in operations that a peer's trace lacks, from which it is unknown whether
it runs through them. By choice, 2026-11-15."""
