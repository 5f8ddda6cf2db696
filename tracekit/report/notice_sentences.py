"""The sentence of every notice: a function per code, or per code and case.

A function's parameters are the values of the notice that its sentence needs, by their names;
``ranks`` and ``labels`` are those of the notice. A sentence that does not take ``ranks`` gets them
put before it.
"""

import shlex
from collections.abc import Callable, Sequence

from tracekit._util.text import (
    counted,
    join_with_and,
    listing,
    ms,
    percent,
    ranks_named,
    record_again,
    short_ms,
)
from tracekit.report.text import first_of, joined, listed, verb

MAX_RANKS_NAMED = 8
"""Parts of a list of ranks that a sentence names (a range is one part); of the others it says how
many there are."""
MAX_PIPELINES_NAMED = 4
"""Pipelines that a sentence names; of the others it says how many there are."""

Sentence = Callable[..., str]
SENTENCES: dict[tuple[str, str], Sentence] = {}
"""Sentences by code and case; the case is empty where a code means one thing."""


def sentence(code: str, case: str = "") -> Callable[[Sentence], Sentence]:
    """Enter a function as the sentence of a code, or of one of its cases."""

    def enter(function: Sentence) -> Sentence:
        SENTENCES[code, case] = function
        return function

    return enter


def cut_in_two(cut_event: bool) -> str:
    """Return how a truncated list of events begins its sentence."""
    return "1 event was cut in two: " if cut_event else ""


def of_the_gpu(gpu_events: int) -> str:
    """Return how many of the lost events are known to be the GPU's."""
    return f", of which {gpu_events} ran on the GPU" if gpu_events else ""


def schedules_with_sizes(schedules: Sequence[str], sizes: Sequence[Sequence[int]]) -> str:
    """Return names of schedules with the sizes at which they fit.

    >>> schedules_with_sizes(["1f1b", "gpipe"], [[4], [2, 3]])
    '1f1b of 4 ranks, gpipe of 2, 3 ranks'
    """
    pairs = zip(schedules, sizes, strict=True)
    return ", ".join(f"{schedule} of {listed(fitting)} ranks" for schedule, fitting in pairs)


def pipelines_named(pipelines: Sequence[Sequence[int]]) -> str:
    """Return the ranks of the first pipelines, and how many more there are.

    >>> pipelines_named([[0, 1], [2, 3]])
    '0, 1; 2, 3'
    """
    named = [listed(ranks, most=MAX_RANKS_NAMED) for ranks in pipelines[:MAX_PIPELINES_NAMED]]
    more = len(pipelines) - len(named)
    return "; ".join(named) + (f" and {more} more" if more else "")


# Finding traces


@sentence("advice-left-out")
def advice_left_out(entry: str, reason: str) -> str:
    return f"the entry {entry} of the catalogue is left out: {reason}"


@sentence("not-a-trace", "named")
def not_a_trace_named(file: str, error: str) -> str:
    return f"skipped {file}: {error}"


@sentence("not-a-trace", "found")
def not_a_trace_found(files: Sequence[str], errors: Sequence[str]) -> str:
    skipped = [f"{file} {error}" for file, error in zip(files, errors, strict=True)]
    return f"skipped {listing(skipped)}"


@sentence("several-exports")
def several_exports(file: str, others: Sequence[str]) -> str:
    return f"read {file}; the same report is also there as {listed(others)}"


@sentence("store-incomplete")
def store_incomplete(path: str) -> str:
    return f"{path}: writing this store was interrupted; go on with: tracekit ingest --resume"


@sentence("resumed")
def resumed(traces: int) -> str:
    return f"{traces} traces were in the store already and have not changed"


PARTS_OF_EVENTS = {
    "timeline": "the timeline",
    "schedule": "the pipeline and its ideal",
    "rates": "rates",
    "by": "rows by layer or module",
}
"""What reports show of the events, in words."""


@sentence("saved-analysis")
def saved_analysis(kernels: int, parts: Sequence[str]) -> str:
    left_out = join_with_and(PARTS_OF_EVENTS.get(part, part) for part in parts)
    return (
        f"read from a saved analysis, which holds its figures, findings and {counted(kernels, 'kernel')}, "
        f"and no events: {left_out} are not shown; name the traces or a store to see them"
    )


@sentence("missing-ranks")
def missing_ranks(role: str | None, count: int, world_size: int, missing: Sequence[int]) -> str:
    of_role = f"role {role}: " if role else ""
    return (
        f"{of_role}{count} of {world_size} ranks {verb(count, 'is', 'are')} not "
        f"here: {first_of(missing, count=count)}"
    )


@sentence("rank-failed", "rank")
def rank_failed_rank(ranks: Sequence[int], error: str) -> str:
    return f"{ranks_named(ranks)} is left out: {error}"


@sentence("rank-failed", "source")
def rank_failed_source(error: str) -> str:
    return f"a source is left out: {error}"


@sentence("rank-failed", "others")
def rank_failed_others(count: int, paths: Sequence[str]) -> str:
    return f"{count} more are left out: {first_of(paths, count=count)}"


# Reading PyTorch traces


@sentence("truncated", "gzip")
def truncated_gzip(cut_event: bool) -> str:
    return f"{cut_in_two(cut_event)}the gzip data is damaged"


@sentence("truncated", "list")
def truncated_list(cut_event: bool) -> str:
    return f"{cut_in_two(cut_event)}the file ends before its list of events does"


@sentence("truncated", "packet")
def truncated_packet() -> str:
    return "the file ends inside a packet"


@sentence("truncated", "bytes")
def truncated_bytes(position: int) -> str:
    return f"the file is damaged behind byte {position:,}: the rest was not read"


@sentence("truncated", "arrow")
def truncated_arrow(file: str) -> str:
    return f"{file}: the file ends early; the tables before were read"


@sentence("truncated", "sqlite")
def truncated_sqlite(file: str, missing_bytes: int) -> str:
    return f"{file}: the file ends {missing_bytes:,} bytes early; what is left was read"


@sentence("bad-events", "lost")
def bad_events_lost(count: int, gpu_events: int) -> str:
    return (
        f"{counted(count, 'damaged event')} {verb(count, 'was', 'were')} "
        f"lost{of_the_gpu(gpu_events)}"
    )


@sentence("bad-events", "behind")
def bad_events_behind(count: int) -> str:
    return f"{counted(count, 'event')} behind the end of the list of events: not read"


@sentence("bad-events", "packets")
def bad_events_packets(count: int, gpu_events: int) -> str:
    return (
        f"{counted(count, 'damaged packet')} {verb(count, 'was', 'were')} "
        f"lost{of_the_gpu(gpu_events)}"
    )


@sentence("bad-events", "long")
def bad_events_long(count: int, limit_mb: int) -> str:
    return f"{counted(count, 'packet')} of more than {limit_mb} MB: not read"


@sentence("bad-values")
def bad_values(count: int) -> str:
    return f"{counted(count, 'value')} left out that no JSON can hold (such as inf or N/A)"


@sentence("bad-text")
def bad_text(count: int) -> str:
    return f"{counted(count, 'name')} repaired after invalid bytes or escapes"


@sentence("long-names")
def long_names(count: int, limit: int) -> str:
    return f"{counted(count, 'name')} longer than {limit:,} characters shortened"


@sentence("unknown-names")
def unknown_names(count: int) -> str:
    return (
        f"{counted(count, 'event')} without a name: the file does not say what its number stands "
        "for"
    )


@sentence("unnamed-arguments")
def unnamed_arguments(count: int) -> str:
    return f"{counted(count, 'argument')} left out whose names are given as numbers"


@sentence("unread-keys")
def unread_keys() -> str:
    return "the keys after the events were too long to read"


@sentence("no-events")
def no_events() -> str:
    return "the file holds no complete event"


@sentence("no-base-time", "lost")
def no_base_time_lost() -> str:
    return "the start of the clock was lost with the end of the file"


@sentence("no-base-time", "odd")
def no_base_time_odd(value: object) -> str:
    return f"baseTimeNanoseconds is {value}, which is not a time: it was left out"


@sentence("odd-rank")
def odd_rank(value: object) -> str:
    return f"rank is {value}, which is not a rank: it was left out"


@sentence("odd-world-size")
def odd_world_size(value: object) -> str:
    return f"world_size is {value}, which no run has: it was left out"


@sentence("odd-group")
def odd_group(odd: int, groups: int) -> str:
    return (
        f"{odd} of {counted(groups, 'process group')} name members that are not ranks: they were "
        "left out"
    )


# Reading Nsight Systems exports


@sentence("damaged-table", "left_out")
def damaged_table_left_out(file: str, table: str) -> str:
    return f"{file}: {table} is damaged and was left out"


@sentence("damaged-table", "in_part")
def damaged_table_in_part(file: str, table: str) -> str:
    return f"{file}: {table} is damaged; the rows before and after were read"


@sentence("damaged-rows", "times")
def damaged_rows_times(file: str, count: int, total: int, rows: str) -> str:
    return f"{file}: {count:,} of {total:,} {rows} have no usable start or end"


@sentence("damaged-rows", "left_out")
def damaged_rows_left_out(file: str, count: int, total: int, rows: str) -> str:
    return f"{file}: {count:,} of {total:,} {rows} were left out: they have no usable start or end"


@sentence("damaged-rows", "no_column")
def damaged_rows_no_column(
    *, file: str, count: int, total: int, rows: str, table: str, column: str
) -> str:
    return f"{file}: {count:,} of {total:,} {rows} were left out: {table} has no column '{column}'"


@sentence("unnamed")
def unnamed(file: str, count: int, total: int, rows: str) -> str:
    return f"{file}: {count:,} of {total:,} {rows} have no name in StringIds"


@sentence("no-clock")
def no_clock() -> str:
    return "the file does not say when it was recorded: times count from 0, ranks align by events"


@sentence("graph-mode")
def graph_mode(launches: int) -> str:
    return (
        f"{launches:,} CUDA graph launches were recorded whole, without their kernels; record "
        "with --cuda-graph-trace=node to see inside"
    )


@sentence("no-launch")
def no_launch(count: int, total: int) -> str:
    return (
        f"{count:,} of {total:,} GPU events have no launch in the file; these are labelled by "
        "name alone"
    )


@sentence("no-ranges")
def no_ranges() -> str:
    return (
        "no NVTX ranges, so labels come from kernel names alone; record with --trace=cuda,nvtx "
        "under torch.autograd.profiler.emit_nvtx()"
    )


@sentence("no-peers")
def no_peers() -> str:
    return (
        "sends and receives do not name their peer: the export has no NCCL payloads (export "
        "again with --include-json=true, or --include-blobs=true)"
    )


@sentence("peers-in-communicator")
def peers_in_communicator() -> str:
    return "peers are numbered within their communicator, which may not be the whole job"


@sentence("profiler-warnings", "buffer_full")
def profiler_warnings_buffer_full(count: int) -> str:
    return (
        f"a buffer ran full and events may be missing ({count} such warnings; open the report in "
        "nsys-ui to read them)"
    )


@sentence("profiler-warnings", "events_lost")
def profiler_warnings_events_lost(count: int) -> str:
    return f"some events were lost ({count} such warnings; open the report in nsys-ui to read them)"


@sentence("profiler-warnings", "trouble_with_clocks")
def profiler_warnings_trouble_with_clocks(count: int) -> str:
    return (
        f"the profiler had trouble with its clocks ({count} such warnings; open the report in "
        "nsys-ui to read them)"
    )


@sentence("profiler-warnings", "unknown_problem")
def profiler_warnings_unknown_problem(count: int) -> str:
    return (
        f"the profiler reported a problem ({count} such warnings; open the report in nsys-ui to "
        "read them)"
    )


# Reading memory snapshots


@sentence("memory-snapshot-failed")
def memory_snapshot_failed(error: str) -> str:
    return f"a memory snapshot is left out: {error}"


@sentence("memory-snapshot-elsewhere")
def memory_snapshot_elsewhere(file: str) -> str:
    return (
        f"{file} is left out: it is not of this process and time (its allocations do not lie in "
        "the trace's operators)"
    )


@sentence("memory-history-short", "used")
def memory_history_short_used(file: str, share: float) -> str:
    return (
        f"{file} saw {percent(share)} of the trace's launches alone (its history was cut, or it "
        "was written early): the peak may be outside of it"
    )


@sentence("memory-history-short", "not_used")
def memory_history_short_not_used(file: str, share: float) -> str:
    return (
        f"{file} is left out: it saw {percent(share)} of the trace's launches alone (its history "
        "was cut, or it was written early)"
    )


@sentence("memory-before-history")
def memory_before_history(share: float) -> str:
    return (
        f"{percent(share)} of the memory at the peak was allocated before the snapshot's history "
        "began (it was switched on late, or cut by max_entries): what it is for is not known"
    )


@sentence("memory-clock-uncertain")
def memory_clock_uncertain(uncertainty_ns: int | None) -> str:
    return (
        f"the memory snapshot is placed on the trace's clock to within {ms(uncertainty_ns, 3)}: "
        "what is allocated between two cells may be counted to the wrong one"
    )


@sentence("memory-several-devices")
def memory_several_devices(gpus: int, device: int) -> str:
    return f"the snapshot has events of {counted(gpus, 'GPU')}: those of GPU {device} are used"


@sentence("memory-no-history")
def memory_no_history() -> str:
    return (
        "the snapshot has no history of allocations: it shows only what was allocated when it "
        "was written"
    )


_SNAPSHOT_CONTRADICTIONS = {
    "times": "the times of its events do not ascend",
    "twice": "memory is allocated or freed twice in a row at one address",
    "sizes": "memory is freed with another size than it was allocated with",
    "end": "what its events leave behind is not what its segments hold",
    "reserved": "its events hold more than is reserved",
}


@sentence("memory-contradiction")
def memory_contradiction(file: str, problem: str, events: int) -> str:
    return (
        f"{file} contradicts itself: {_SNAPSHOT_CONTRADICTIONS.get(problem, problem)}. Its {counted(events, 'event')} "
        "are not used, and its segments may be incomplete: write the snapshot again"
    )


@sentence("memory-no-stacks")
def memory_no_stacks() -> str:
    return "the snapshot has no stacks: nothing is known by source line"


@sentence("memory-unknown-events")
def memory_unknown_events(events: int) -> str:
    return f"{counted(events, 'event')} of unknown kinds were left out"


# Reading flight-recorder dumps and logs of the NCCL Inspector


@sentence("recorder-repeated")
def recorder_repeated(file: str, entries: int) -> str:
    return f"{file}: {counted(entries, 'entry')} stood there twice and count once"


@sentence("recorder-copied")
def recorder_copied(files: Sequence[str]) -> str:
    return (
        f"{joined(files)} have the same times to the nanosecond: they are copies of one rank's file, "
        "and all are left out"
    )


@sentence("copied-ranks")
def copied_ranks(files: Sequence[str]) -> str:
    return (
        f"{joined(files)} have the same times to the nanosecond: they are copies of one rank's file. "
        "Which rank's is unknown, and none of them is analysed"
    )


@sentence("recorder-disagrees")
def recorder_disagrees(operations: int, of: int) -> str:
    return (
        f"{operations:,} of {of:,} collectives completed although their members called different "
        "operations or sizes: their numbers are off, or the files are of different runs. They are "
        "left out"
    )


@sentence("recorder-version", "unknown")
def recorder_version_unknown(file: str) -> str:
    return f"{file}: does not say the version of its format"


@sentence("recorder-version", "newer")
def recorder_version_newer(file: str, version: object, known: object) -> str:
    return (
        f"{file}: version {version} of the flight recorder is newer than {known}; fields it adds "
        "are not read"
    )


@sentence("recorder-version", "inspector")
def recorder_version_inspector(file: str, version: object, known: Sequence[int]) -> str:
    return f"{file}: version {version} of the Inspector's log is not one of {joined(known)}"


@sentence("damaged-entries", "entries")
def damaged_entries_entries(file: str, count: int) -> str:
    return f"{file}: {count:,} {verb(count, 'entry', 'entries')} cannot be read"


@sentence("damaged-entries", "cut_lines")
def damaged_entries_cut_lines(file: str, count: int) -> str:
    return f"{file}: {counted(count, 'line')} {verb(count, 'is', 'are')} cut off"


@sentence("damaged-entries", "damaged_lines")
def damaged_entries_damaged_lines(file: str, count: int) -> str:
    return f"{file}: {counted(count, 'line')} {verb(count, 'is', 'are')} damaged"


@sentence("recording-failed", "rank")
def recording_failed_rank(ranks: Sequence[int], error: str) -> str:
    return f"{ranks_named(ranks)} is left out: {error}"


@sentence("recording-failed", "recording")
def recording_failed_recording(error: str) -> str:
    return f"a recording is left out: {error}"


@sentence("ranks-by-order")
def ranks_by_order(processes: int, largest_group: int, first_host: str, first_pid: int) -> str:
    return (
        f"no communicator has all {processes} processes (the largest has {largest_group}), so "
        f"ranks are numbered by host and process: rank 0 is {first_host} process {first_pid}"
    )


@sentence("recordings-unused")
def recordings_unused(error: str) -> str:
    return f"dumps and logs beside the traces are not used: {error}"


@sentence("recordings-beside")
def recordings_beside(path: str) -> str:
    return (
        "dumps or logs of the whole run lie beside the traces: "
        f"`tracekit late {shlex.quote(path)}` shows who joins late, and hangs"
    )


@sentence("recorder-left-out")
def recorder_left_out(recorder: str) -> str:
    return (
        f"what the {recorder} recorded cannot be told from what another recorder did, and is not "
        "compared"
    )


@sentence("records-apart")
def records_apart() -> str:
    return "shares no operation with other ranks: its record is of another time, or of another run"


@sentence("recorded-clocks-apart")
def recorded_clocks_apart(hours: float) -> str:
    return f"the clock is {hours} h off: it is wrong, or the record is of another run"


@sentence("recorded-clocks-unknown")
def recorded_clocks_unknown() -> str:
    return (
        "the clock ran differently from others, or jumped: times of calls are not compared with it"
    )


# What a recording lacks


@sentence("no-gpu-events", "nothing_ran")
def no_gpu_events_nothing_ran() -> str:
    return "nothing ran on a GPU here, or CUDA was not traced"


@sentence("no-gpu-events", "truncated")
def no_gpu_events_truncated() -> str:
    return "there are no GPU events: the file ends before them: copy it again, or record again"


@sentence("no-gpu-events", "other_accelerator")
def no_gpu_events_other_accelerator() -> str:
    return (
        "there are no GPU events: it is another accelerator's trace: only CUDA and ROCm traces "
        "are read here"
    )


@sentence("no-gpu-events", "other_program")
def no_gpu_events_other_program() -> str:
    return (
        "there are no GPU events: nothing in it comes from PyTorch's profiler or Nsight "
        "Systems: only their traces are read here"
    )


@sentence("no-gpu-events", "not_recorded")
def no_gpu_events_not_recorded() -> str:
    return "there are no GPU events: record with CUDA activities on"


@sentence("no-free-step", "no_operators")
def no_free_step_no_operators() -> str:
    return (
        "the recording has GPU activities alone: the GPU's work is exact, but what the host did, and "
        "what a step takes without the profiler, is not known: record CPU activities as well, or "
        "with tracekit.profiler, which times the step before it records"
    )


@sentence("no-free-step", "other_profiler")
def no_free_step_other_profiler() -> str:
    return "what a step takes without this profiler is not known: times and savings are as recorded"


@sentence("no-steps")
def no_steps() -> str:
    return "there are no step marks: the whole trace is taken as one step"


@sentence("steps-by-optimizer")
def steps_by_optimizer(steps: int) -> str:
    return f"{steps} steps are told apart by their optimizer: there are no step marks"


@sentence("outside-steps", "launched")
def outside_steps(events: int, busy_ns: int) -> str:
    return f"{events} GPU events ({ms(busy_ns, 3)}) were launched outside every step: not counted"


@sentence("outside-steps", "no_launch")
def outside_steps_no_launch(events: int, busy_ns: int) -> str:
    return (
        f"{events} GPU events ({short_ms(busy_ns)}) ran between steps: not counted; their launch "
        "is not in the file"
    )


@sentence("before-first-step")
def before_first_step(events: int, busy_ns: int) -> str:
    return (
        f"{events} GPU events ({short_ms(busy_ns)}), whose launch is not in the file, ran before "
        "the first step: they belong to none"
    )


@sentence("partial-step")
def partial_step(step: int, events: int) -> str:
    return f"step {step} holds only {events} GPU events: it looks cut off"


@sentence("start-up", "left_out")
def start_up_left_out(count: int, steps: Sequence[int]) -> str:
    return (
        f"{verb(count, 'step', 'steps')} {first_of(steps, count=count)} "
        f"{verb(count, 'loads', 'load')} code onto the GPU (start-up): left out of ordinary steps"
    )


@sentence("start-up", "alone")
def start_up_alone(count: int, steps: Sequence[int]) -> str:
    return (
        f"{verb(count, 'step', 'steps')} {first_of(steps, count=count)} "
        f"{verb(count, 'loads', 'load')} code onto the GPU (start-up), and no other was recorded: "
        "nothing is advised about it; record later steps"
    )


@sentence("steps-not-common")
def steps_not_common(count: int, steps: Sequence[int]) -> str:
    return (
        f"{verb(count, 'step', 'steps')} {first_of(steps, count=count)} "
        f"{verb(count, 'is', 'are')} missing, which other ranks recorded: only steps that all "
        "ranks recorded are counted"
    )


@sentence("graphs-whole")
def graphs_whole(graphs: int) -> str:
    return (
        f"{counted(graphs, 'captured graph')} {verb(graphs, 'was', 'were')} recorded whole, without "
        f"{verb(graphs, 'its kernels: it counts', 'their kernels: they count')} as compute labelled other"
    )


@sentence("no-launches", "recorded")
def no_launches(count: int, total: int) -> str:
    return f"the launch of {count:,} of {total:,} GPU events is not in the file"


@sentence("no-launches", "by_operator")
def no_launches_by_operator(count: int, total: int) -> str:
    return (
        f"{no_launches(count, total)}: the operators around it tell steps and labels, and launches "
        "count from an operator's start"
    )


@sentence("no-launches", "by_time")
def no_launches_by_time(count: int, total: int) -> str:
    return (
        f"{no_launches(count, total)}: they count in the step in which they ran, what their gaps "
        "waited for is not known, waits and costs may be lower bounds, and what findings would save is "
        "withheld; tracekit doctor says how to record launches"
    )


def gpu_clock_contradicts(impossible: int, late: int, total: int) -> str:
    parts = []
    if impossible:
        parts.append(f"{impossible:,} of {total:,} GPU events start before their launch")
    if late:
        parts.append(f"the host waited {late:,} times for GPU work that seems to end later")
    return " and ".join(parts)


@sentence("gpu-clock", "moved")
def gpu_clock_moved(impossible: int, late: int, total: int, shift_ns: int) -> str:
    return (
        f"the GPU's times were moved by {shift_ns / 1000:+,.0f} µs (its clock is off): "
        f"{gpu_clock_contradicts(impossible, late, total)}; it is the least that makes every launch and "
        "wait possible"
    )


@sentence("gpu-clock", "drifts")
def gpu_clock_drifts(impossible: int, late: int, total: int, shift_ns: int, drift: float) -> str:
    return (
        f"the GPU's times were moved by up to {shift_ns / 1000:+,.0f} µs (its clock drifts): "
        f"{gpu_clock_contradicts(impossible, late, total)}; {abs(drift):.2%} of the time that passed make every "
        "launch and wait possible"
    )


@sentence("gpu-clock", "drift_unknown")
def gpu_clock_drift_unknown(impossible: int, late: int, total: int, shift_ns: int) -> str:
    return (
        "savings and the step without the profiler are withheld (the GPU's clock drifts): "
        f"{gpu_clock_contradicts(impossible, late, total)}; how fast it drifts is not known, its times were moved by "
        f"the least that makes every launch and wait possible, up to {shift_ns / 1000:+,.0f} µs"
    )


@sentence("gpu-clock", "few")
def gpu_clock_few(impossible: int, late: int, total: int) -> str:
    return (
        f"{gpu_clock_contradicts(impossible, late, total)}: too few to be the GPU's clock, so that their "
        "times were left as they are"
    )


@sentence("gpu-clock", "unexplained")
def gpu_clock_unexplained(impossible: int, late: int, total: int) -> str:
    return (
        "savings and the step without the profiler are withheld: "
        f"{gpu_clock_contradicts(impossible, late, total)}, which no shift of the GPU's clock explains; what "
        "work waited for is not known either"
    )


@sentence("repeated-events")
def repeated_events(count: int, total: int, reader: str) -> str:
    return (
        f"{count:,} of {total:,} GPU events stand in the file more than once: counts and sums of "
        f"kernels are too large, and so is what rests on them; {record_again(reader)}"
    )


@sentence("gpu-events-lost", "untimed")
def gpu_events_lost_untimed(count: int, total: int, reader: str) -> str:
    return (
        f"{count:,} of {total:,} GPU events have no usable start or end, or lie outside of the "
        f"recording: idle time and the bubble are null; {record_again(reader)}"
    )


@sentence("gpu-events-lost", "unreadable")
def gpu_events_lost_unreadable(count: int, total: int, reader: str) -> str:
    return (
        f"{count:,} of {total:,} events are damaged and may have run on the GPU: idle time and "
        f"the bubble are null; {record_again(reader)}"
    )


@sentence("gpu-events-lost", "some_launches")
def gpu_events_lost_some_launches(count: int, launches: int) -> str:
    return (
        f"{count} of {launches} launches have no GPU event in the file (dropped by the "
        "profiler): idle time in which they may have run counts as not recorded, compute is at "
        "least what is shown, and causes of idle time and of the gap are not certain"
    )


@sentence("gpu-events-lost", "many_launches")
def gpu_events_lost_many_launches(count: int, launches: int) -> str:
    return (
        f"{count} of {launches} launches have no GPU event in the file (dropped by the "
        "profiler): idle time and the bubble are null; record fewer steps, or record again"
    )


@sentence("gpu-events-lost", "some_operators")
def gpu_events_lost_some_operators(count: int, step_count: int, steps: Sequence[int]) -> str:
    return (
        f"{operators_without_launch(count, step_count, steps)}: idle time in which it may have run "
        "counts as not recorded, compute is at least what is shown"
    )


@sentence("gpu-events-lost", "many_operators")
def gpu_events_lost_many_operators(count: int, step_count: int, steps: Sequence[int]) -> str:
    return (
        f"{operators_without_launch(count, step_count, steps)}: idle time and the bubble are null; "
        "record fewer steps, or record again"
    )


def operators_without_launch(count: int, step_count: int, steps: Sequence[int]) -> str:
    return (
        f"{counted(count, 'operator')} of {verb(step_count, 'step', 'steps')} "
        f"{first_of(steps, count=step_count)} launched nothing, though in steps of like work they do: their "
        "GPU work is missing with its launches"
    )


@sentence("clock-jump")
def clock_jump(count: int, jump_ns: int) -> str:
    times = "" if count == 1 else f" {count} times, once"
    return (
        f"the clock of the recording jumped{times} by {short_ms(jump_ns)}, in which nothing began on the host or "
        "on the GPU: later times were moved back"
    )


@sentence("steps-renumbered")
def steps_renumbered(step: int) -> str:
    return (
        f"several steps have the number {step} (a second profiler, or another loop): all steps are numbered in "
        "order of time"
    )


@sentence("zero-durations")
def zero_durations(count: int, total: int) -> str:
    return (
        f"{count:,} of {counted(total, 'kernel')} last 0 ns: their durations were not recorded; compute "
        "is at least what is shown"
    )


@sentence("graph-captured")
def graph_captured(launches: int) -> str:
    return (
        f"{launches} launches recorded a graph (between the begin and the end of its "
        "capture): they ran nothing, and no kernel is missing for them"
    )


@sentence("capture-joined")
def capture_joined(replays: int, file: str, share: float) -> str:
    return (
        f"{counted(replays, 'graph replay')} {verb(replays, 'has', 'have')} the operators, "
        f"shapes and modules of the capture {file}: {percent(share)} of the GPU time of all "
        "replays"
    )


@sentence("capture-unused", "no_graphs")
def capture_unused_no_graphs(file: str) -> str:
    return f"{file}: no graph was captured in this trace"


@sentence("capture-unused", "kernel_count")
def capture_unused_kernel_count(file: str, replays: int, captured: int, replayed: int) -> str:
    return (
        f"{file} is not the capture of {counted(replays, 'graph replay')}: "
        f"{counted(captured, 'kernel')} {verb(captured, 'was', 'were')} captured, and a replay "
        f"has {replayed}"
    )


@sentence("capture-unused", "memset_count")
def capture_unused_memset_count(file: str, replays: int, captured: int, replayed: int) -> str:
    return (
        f"{file} is not the capture of {counted(replays, 'graph replay')}: "
        f"{counted(captured, 'memset')} {verb(captured, 'was', 'were')} captured, and a replay "
        f"has {replayed}"
    )


@sentence("capture-unused", "memcpy_count")
def capture_unused_memcpy_count(file: str, replays: int, captured: int, replayed: int) -> str:
    return (
        f"{file} is not the capture of {counted(replays, 'graph replay')}: {captured} "
        f"{verb(captured, 'copy was', 'copies were')} captured, and a replay has {replayed}"
    )


@sentence("capture-unused", "order")
def capture_unused_order(file: str, replays: int) -> str:
    return (
        f"{file} is not the capture of {counted(replays, 'graph replay')}: kernels, copies and "
        "memsets come in another order"
    )


@sentence("capture-unused", "names")
def capture_unused_names(file: str, replays: int, share: float) -> str:
    return (
        f"{file} is not the capture of {counted(replays, 'graph replay')}: only {percent(share)} "
        "of the captured kernels have the name of a replayed one"
    )


@sentence("capture-unused", "kernels")
def capture_unused_kernels(file: str, replays: int, share: float) -> str:
    return (
        f"{file} is not the capture of {counted(replays, 'graph replay')}: only {percent(share)} "
        "of the launches would always be the same kernel"
    )


@sentence("capture-unused", "sizes")
def capture_unused_sizes(file: str, captured: int, replays: int, replayed: int) -> str:
    return (
        f"{file} is the capture of another batch size: its shapes ask for "
        f"{counted(captured, 'block')} where {counted(replays, 'graph replay')} "
        f"{verb(replays, 'runs', 'run')} {replayed}"
    )


@sentence("capture-unused", "short_launch")
def capture_unused_short_launch(replays: int, file: str, replayed: int, captured: int) -> str:
    return (
        f"{counted(replays, 'graph replay')} {verb(replays, 'is', 'are')} not joined with "
        f"{file}: the launch and the time until the host's next event take {replayed:,} ns, too "
        f"short for the order of {captured:,} captured times"
    )


@sentence("capture-unused", "several_graphs")
def capture_unused_several_graphs(captured: int, file: str, replays: int, replayed: int) -> str:
    return (
        f"{captured} graphs of {file} fit {counted(replays, 'graph replay')} of {replayed} nodes "
        "equally well, and differ in their operators: it cannot be told which was replayed"
    )


@sentence("graphs-unseen")
def graphs_unseen(count: int, launches: int) -> str:
    return (
        f"{count} of {launches} launches of graphs left no GPU events in the file: what they "
        "ran is not known, so idle time and the bubble are null; record with graph node tracing"
    )


@sentence("graph-nodes-missing")
def graph_nodes_missing(hole_ns: int, share: float) -> str:
    return (
        f"captured graphs ran for {ms(hole_ns, 3)} ({percent(share)} of the recording) without a "
        "kernel in the file: this time counts as not recorded, not as idle; record with graph "
        "node tracing"
    )


@sentence("recording-cut", "end")
def recording_cut_end(launches: int) -> str:
    return (
        f"the last {launches} launches have no GPU event: the recording ends before they ran; "
        "figures are of the part that was recorded"
    )


@sentence("recording-cut", "begin")
def recording_cut_begin(launches: int) -> str:
    return (
        f"the first {launches} launches have no GPU event: the recording begins after they ran; "
        "figures are of the part that was recorded"
    )


# Operations across ranks, waits and clocks


@sentence("uneven-operations", "fewer")
def uneven_operations_fewer(ranks: Sequence[int], missing: int) -> str:
    return (
        f"{ranks_named(ranks)} recorded {counted(missing, 'operation')} fewer than the peers: "
        "where they are missing was found by sizes and times, and operations whose partner is "
        "not certain stay unmatched"
    )


@sentence("uneven-operations", "other")
def uneven_operations_other(ranks: Sequence[int]) -> str:
    return (
        f"{ranks_named(ranks)} recorded other operations than the peers: where they are missing "
        "was found by sizes and times, and operations whose partner is not certain stay "
        "unmatched"
    )


@sentence("unmatched-operations")
def unmatched_operations(operations: Sequence[str]) -> str:
    return (
        f"{listed(operations)}: the trace names no group and the ranks' ends do not agree, so "
        "waiting inside them is not known"
    )


@sentence("clocks-apart")
def clocks_apart(ranks: Sequence[int], apart_ns: int, later: bool, other_rank: int) -> str:
    return (
        f"{ranks_named(ranks)} was recorded {apart_ns / 1e9:,.1f} s "
        f"{'after' if later else 'before'} rank {other_rank}: if they belong to one "
        "run, their clocks differ by that much; if not, name the files of one run"
    )


@sentence("wait-unknown", "no_kernels")
def wait_unknown_no_kernels() -> str:
    return (
        "the host sends and receives, but no kernel is known to do so: waiting inside them is "
        "not known and the bubble fraction is a lower bound; name the kernels in a rules file "
        "(--rules)"
    )


@sentence("wait-unknown", "unnamed")
def wait_unknown_unnamed(count: int, total: int) -> str:
    return (
        f"{count} of {total} sends and receives name neither what they carry nor their peer: "
        "waiting inside them is not known and the bubble fraction is a lower bound; record "
        "operators, or the peers"
    )


@sentence("wait-unknown", "peers_unnamed")
def wait_unknown_peers_unnamed(count: int, total: int) -> str:
    return (
        f"{count} of {total} sends and receives do not name their peer: waiting inside them is "
        "not known and the bubble fraction is a lower bound; record the peers"
    )


@sentence("wait-unknown", "no_counterpart")
def wait_unknown_no_counterpart(count: int, total: int) -> str:
    return (
        f"{count} of {total} sends and receives have no counterpart in the trace of their peer: "
        "waiting inside them is not known and the bubble fraction is a lower bound; record all "
        "ranks over the same time"
    )


@sentence("wait-unknown", "peers_missing")
def wait_unknown_peers_missing(count: int, total: int, missing: Sequence[int]) -> str:
    return (
        f"{count} of {total} sends and receives have no peer in these traces: waiting inside "
        f"them is not known and the bubble fraction is a lower bound; add {ranks_named(missing)}"
    )


@sentence("wait-bound")
def wait_bound(labels: Sequence[str], uncertainty_ns: int | None) -> str:
    why = "nothing ties the clocks"
    if uncertainty_ns is not None:
        why = f"clocks agree only to {ms(uncertainty_ns, 3)}"
    return (
        f"{joined(labels)}: waits are upper bounds (own duration minus the shortest one), "
        "because "
        f"{why}"
    )


@sentence("operations-lost")
def operations_lost(count: int, total: int, labels: Sequence[str], ranks: Sequence[int]) -> str:
    launched_by = ""
    if ranks:
        launched_by = f" ({ranks_named(ranks)} launched it, and its kernel is not in the file)"
    return (
        f"{count} of {total:,} operations ({joined(labels)}) lack the side of another "
        f"rank{launched_by}: "
        "waits in them are lower bounds"
    )


@sentence("members-missing")
def members_missing(labels: Sequence[str], missing: Sequence[int]) -> str:
    remedy = f"add {ranks_named(missing)}" if missing else "give all ranks"
    return (
        f"{joined(labels)}: not all members were recorded, so waiting for the others is not "
        f"known; {remedy}"
    )


# Labels and bounds


@sentence("unlabelled")
def unlabelled(share: float, ranks: Sequence[int], ranks_above: int, limit: float) -> str:
    elsewhere = ""
    if ranks_above:
        elsewhere = f"; above {percent(limit, digits=0)} on {ranks_above} ranks"
    return (
        f"no rule knows what {percent(share)} of {ranks_named(ranks)}'s span is (label "
        f"other{elsewhere}): it "
        "counts as compute; name it in a rules file (--rules), see --explain other"
    )


@sentence("replay-sampled")
def replay_sampled(replayed: int, count: int, waited_for: Sequence[int], spread: float) -> str:
    chosen = "those nearest to the median of their kind"
    if waited_for:
        named = first_of(waited_for, count=MAX_RANKS_NAMED)
        chosen = f"those that others wait for most (ranks {named}), with whom they exchange messages, and {chosen}"
    return (
        f"savings and the step without the profiler come from a replay of {replayed} of {count:,} ranks: "
        f"{chosen}; compute of the ranks left out differs from that median by up to {percent(spread)}: "
        "what is unlike others there and lets nobody wait is not found"
    )


@sentence("weak-labels")
def weak_labels(share: float) -> str:
    return (
        f"{percent(share)} of GPU time is labelled by weak evidence (what ran around it): record "
        "operators and shapes, or name it in a rules file (--rules); --explain says which rule "
        "decided"
    )


@sentence("bubble-bound-low")
def bubble_bound_low(bound: float, outside_cells: float) -> str:
    return (
        f"the bubble's bound of {percent(bound)} counts idle time and known waits alone: ranks "
        f"of the pipeline were in no cell for {percent(outside_cells)} of its time; record the "
        "peers of messages to know how much of that is bubble"
    )


# Pipelines


@sentence("no-sequence-numbers")
def no_sequence_numbers() -> str:
    return "no autograd sequence numbers: backwards are tied to forwards by order alone"


@sentence("pairs-by-order")
def pairs_by_order() -> str:
    return (
        "backwards share no sequence number with a forward (as with recomputed layers): tied by "
        "order alone"
    )


@sentence("forward-without-backward")
def forward_without_backward() -> str:
    return "some forwards have no backward in the trace"


@sentence("steps-sampled")
def steps_sampled(stride: int, compared: int, steps: int) -> str:
    return (
        f"one step in {stride} is compared with its ideal, {compared} of {steps}; choose others "
        "with --steps"
    )


@sentence("partial-pipeline")
def partial_pipeline(ranks: Sequence[int], missing: Sequence[int]) -> str:
    return (
        f"pipeline of ranks {listed(ranks, most=8)}: no trace of {ranks_named(missing)}: their "
        "cells, and what they held up, cannot be known"
    )


@sentence("layout-contradicted")
def layout_contradicted(pipeline: Sequence[int], ranks: Sequence[int], peers: Sequence[int]) -> str:
    return (
        f"the layout makes ranks {listed(pipeline, most=8)} one pipeline, but "
        f"{ranks_named(ranks)} exchanges its messages with rank {listed(peers, most=8)}: no "
        "schedule can be named for it"
    )


@sentence("ranks-unknown")
def ranks_unknown(ranks: Sequence[int]) -> str:
    return (
        "messages do not name their peers, and not all ranks are here (only "
        f"{listed(ranks, most=8)}): which ranks form a pipeline is not known; give all, or "
        "--layout"
    )


@sentence("peers-unknown")
def peers_unknown(ranks: Sequence[int]) -> str:
    return (
        f"messages do not name their peers: ranks {listed(ranks, most=8)} are taken as one "
        "pipeline, in this order; override with --layout"
    )


@sentence("peers-by-order")
def peers_by_order(pipelines: Sequence[Sequence[int]], met_share: float, messages: int) -> str:
    return (
        "messages do not name their peers: along the pipeline of ranks "
        f"{pipelines_named(pipelines)} the k-th send meets the k-th receive, and "
        f"{percent(met_share, digits=0)} of the {messages:,} ran at the same time as their other "
        "side; waiting rests on that match (override with --layout)"
    )


@sentence("stages-unknown", "peers_unnamed")
def stages_unknown_peers_unnamed() -> str:
    return "stages and micro-batches are not known: the trace does not say who the messages went to"


@sentence("stages-unknown", "loop_without_last_rank")
def stages_unknown_loop_without_last_rank() -> str:
    return (
        "stages and micro-batches are not known: without the last rank the chunks of a loop "
        "cannot be told apart"
    )


@sentence("stages-unknown", "v_without_last_rank")
def stages_unknown_v_without_last_rank() -> str:
    return (
        "stages and micro-batches are not known: without the last rank's forwards a V cannot be "
        "told from two opposite pipelines"
    )


@sentence("stages-unknown", "uneven_sends")
def stages_unknown_uneven_sends() -> str:
    return "stages and micro-batches are not known: the last rank's sends do not divide into chunks"


@sentence("stages-unknown", "unknown_chunk_order")
def stages_unknown_unknown_chunk_order(virtual: int) -> str:
    return (
        f"stages and micro-batches are not known: the order of {virtual} chunks per rank is not "
        "a known one"
    )


@sentence("stages-unknown", "uneven_forwards")
def stages_unknown_uneven_forwards() -> str:
    return "stages and micro-batches are not known: the ranks ran different numbers of forwards"


# Schedules


@sentence("no-pipeline", "no_work")
def no_pipeline_no_work() -> str:
    return "no forward or backward work was found: nothing to reconstruct"


@sentence("no-pipeline", "no_messages")
def no_pipeline_no_messages() -> str:
    return "no pipeline messages and no overlapped micro-batches: no schedule to compare with"


@sentence("no-pipeline", "no_common_step")
def no_pipeline_no_common_step() -> str:
    return "the ranks of a pipeline have no step in common"


@sentence("overlap-seen")
def overlap_seen(ranks: Sequence[int], share: float) -> str:
    return (
        f"{ranks_named(ranks)} runs {percent(share)} of its communication beside compute of the "
        "other pass: it overlaps micro-batches; which schedule that belongs to cannot be known "
        "without its messages"
    )


@sentence("step-cut", "not_recorded")
def step_cut_not_recorded(step: int) -> str:
    return f"step {step} is cut: a part of what it launched was not recorded"


@sentence("step-cut", "incomplete")
def step_cut_incomplete(
    step: int, without_backward: int, without_forward: int, fewest_forwards: int, most_forwards: int
) -> str:
    signs = []
    if without_backward:
        signs.append(f"{without_backward} forwards have no backward")
    if without_forward:
        signs.append(f"{without_forward} backwards have no forward")
    if fewest_forwards != most_forwards:
        signs.append(f"the ranks ran {fewest_forwards} to {most_forwards} forwards")
    return f"step {step} is cut: {', '.join(signs)}; which schedule it was part of is not certain"


@sentence("forward-only")
def forward_only(step: int) -> str:
    return (
        f"step {step}: forwards run and no backward: evaluation or inference, or the trace ends "
        "before the first backward; a training schedule cannot be named"
    )


@sentence("schedule-other", "size")
def schedule_other_size(schedule: str, forwards: int, pipeline_ranks: int) -> str:
    return f"{schedule} cannot run {forwards} forwards on each of {pipeline_ranks} ranks"


@sentence("schedule-other", "ranks")
def schedule_other_ranks(schedule: str, schedule_ranks: int, pipeline_ranks: int) -> str:
    return (
        f"{schedule} is an order of {counted(schedule_ranks, 'rank')}, and the pipeline has "
        f"{pipeline_ranks}"
    )


@sentence("schedule-doubtful", "order")
def schedule_doubtful_order(step: int, schedule: str, misplaced: int, units: int) -> str:
    return (
        f"step {step}: its order is nearest to {schedule}'s, but {misplaced} of its {units} "
        "units of work are elsewhere: no schedule is named; give another order with --schedule "
        "FILE"
    )


@sentence("schedule-doubtful", "ideal_above")
def schedule_doubtful_ideal_above(step: int, schedule: str, ideal_ns: int, measured_ns: int) -> str:
    return (
        f"step {step}: the ideal of {schedule} at the run's own times, {ms(ideal_ns)}, is above "
        f"the {ms(measured_ns)} measured: no schedule is named"
    )


@sentence("schedule-doubtful", "unexplained")
def schedule_doubtful_unexplained(step: int, schedule: str, share: float, measured_ns: int) -> str:
    return (
        f"step {step}: compared with {schedule}, {percent(share)} of the {ms(measured_ns)} "
        "measured would stay unexplained: no schedule is named"
    )


@sentence("schedule-doubtful", "two_causes")
def schedule_doubtful_two_causes(step: int, schedule: str, share: float, measured_ns: int) -> str:
    return (
        f"step {step}: compared with {schedule}, {percent(share)} of the {ms(measured_ns)} "
        "measured would have two causes: no schedule is named"
    )


@sentence("gap-doubtful", "ideal_above")
def gap_doubtful_ideal_above(schedule: str, ideal_ns: int, measured_ns: int) -> str:
    return (
        f"the ideal of {schedule} at the run's own times, {ms(ideal_ns)}, is above the "
        f"{ms(measured_ns)} measured: the gap is not split by cause"
    )


@sentence("gap-doubtful", "unexplained")
def gap_doubtful_unexplained(schedule: str, share: float, measured_ns: int) -> str:
    return (
        f"compared with {schedule}, {percent(share)} of the {ms(measured_ns)} measured would "
        "stay unexplained: the gap is not split by cause"
    )


@sentence("gap-doubtful", "two_causes")
def gap_doubtful_two_causes(schedule: str, share: float, measured_ns: int) -> str:
    return (
        f"compared with {schedule}, {percent(share)} of the {ms(measured_ns)} measured would "
        "have two causes: the gap is not split by cause"
    )


@sentence("order-uncertain")
def order_uncertain(cells: int) -> str:
    return f"{cells} cells seem to wait for each other: their stages or order are not certain"


@sentence("order-differs")
def order_differs(schedule: str, misplaced: int, units: int) -> str:
    return (
        f"the order is not exactly {schedule}'s: {misplaced} of its {units} units of work are "
        "elsewhere"
    )


@sentence("order-unknown")
def order_unknown(ranks: Sequence[int], stages_known: bool) -> str:
    stages = "" if stages_known else " and its stages are not known"
    return (
        f"pipeline of rank(s) {listed(ranks, most=8)}: its order is not a known "
        f"schedule's{stages}; give one with "
        "--schedule FILE"
    )


@sentence("fb-run-apart")
def fb_run_apart(blocks: int, schedule: str) -> str:
    return f"{blocks} overlapped FB blocks of {schedule} ran as an F and a B, one after the other"


@sentence("backward-fused")
def backward_fused(backwards: int, schedule: str) -> str:
    return f"{backwards} split backwards of {schedule} ran in one piece"


@sentence("schedule-ambiguous", "on_these_ranks")
def schedule_ambiguous_on_these_ranks(others: Sequence[str], schedule: str) -> str:
    return (
        f"on the ranks there are traces of, {joined(others)} would have the same order as "
        f"{schedule}; traces of more ranks would decide it"
    )


@sentence("schedule-ambiguous", "at_this_size")
def schedule_ambiguous_at_this_size(others: Sequence[str], schedule: str) -> str:
    return f"at this size {joined(others)} would have the same order as {schedule}"


@sentence("schedule-ambiguous", "size")
def schedule_ambiguous_size(
    schedules: Sequence[str],
    sizes: Sequence[Sequence[int]],
    other_schedules: Sequence[str],
    other_sizes: Sequence[Sequence[int]],
) -> str:
    return (
        "nothing in the trace says how many ranks the pipeline has; its order is that of "
        f"{schedules_with_sizes(schedules, sizes)}, and less likely (blocks run apart, or other "
        f"stages than the ranges say) of {schedules_with_sizes(other_schedules, other_sizes)}; "
        "traces of more ranks, or --layout, would decide it"
    )


@sentence("size-from-order")
def size_from_order(schedules: Sequence[str], sizes: Sequence[Sequence[int]]) -> str:
    return (
        "nothing in the trace says how many ranks the pipeline has; its order is that of "
        f"{schedules_with_sizes(schedules, sizes)} and of no other size tried; override with "
        "--layout"
    )


@sentence("pipeline-size-unknown", "none_fits")
def pipeline_size_unknown_none_fits(schedule: str | None, smallest: int, largest: int) -> str:
    return (
        "nothing in the trace says how many ranks the pipeline has, and "
        f"{'no known schedule' if schedule is None else schedule} of {smallest} to "
        f"{largest} ranks has this order: no schedule is named; give more of its ranks, or "
        "--layout pp=N"
    )


@sentence("pipeline-size-unknown", "several_fit")
def pipeline_size_unknown_several_fit(
    schedules: Sequence[str], sizes: Sequence[Sequence[int]]
) -> str:
    return (
        "nothing in the trace says how many ranks the pipeline has, and the order is that of "
        f"{schedules_with_sizes(schedules, sizes)}: no schedule is named; give more of its "
        "ranks, or --layout pp=N"
    )


@sentence("stages-from-pattern")
def stages_from_pattern() -> str:
    return "stages and micro-batches are taken from the schedule that has this pattern"


@sentence("weights-counted")
def weights_counted() -> str:
    return "weight gradients ran outside autograd: each is given to a backward by counting"


@sentence("late-start")
def late_start(step: int, ranks: Sequence[int], late_ns: int) -> str:
    return (
        f"step {step}: {ranks_named(ranks)} began {ms(late_ns)} late: its host had not launched "
        "anything (counted as host)"
    )


@sentence("steps-differ")
def steps_differ(steps: Sequence[int], exact: bool, schedule: str, microbatches: int) -> str:
    return (
        f"step(s) {listed(steps, most=8)} ran another order than the step shown "
        f"({'' if exact else 'not quite '}{schedule} with {microbatches} micro-batches)"
    )


@sentence("what-if-limited")
def what_if_limited(schedules: Sequence[str]) -> str:
    return (
        f"{join_with_and(schedules)} are not among the schedules tried: searching their order "
        "takes too long for a run of this size"
    )


@sentence("what-if-ideal-only")
def what_if_ideal_only(reason: str) -> str:
    return f"no schedule's span could be predicted, only its ideal: {reason}"


# The critical path


@sentence("path-uncertain")
def path_uncertain(ranks: Sequence[int], uncertain_ns: int) -> str:
    return (
        f"clocks do not tell which of {ranks_named(ranks)} has the most work on the critical "
        f"path: for {ms(uncertain_ns, 3)} of it another rank may have arrived last"
    )


@sentence("path-ends", "no_launches")
def path_ends_no_launches() -> str:
    return (
        "the file has no launches, so the critical path cannot cross from the GPU to the host "
        "and follows the streams alone; record CPU activities as well"
    )


@sentence("path-ends", "stopped")
def path_ends_stopped(step: int | None, remaining_ns: int, ranks: Sequence[int]) -> str:
    of_step = "" if step is None else f" of step {step}"
    return (
        f"the critical path{of_step} was followed back only to "
        f"{ms(remaining_ns, 3)} after the step's start, on {ranks_named(ranks)}: the trace does "
        "not say what the work there waited for; record launches and synchronisation"
    )


@sentence("path-alone", "no_counterpart")
def path_alone_no_counterpart(labels: Sequence[str]) -> str:
    return (
        f"the critical path stays on its rank in {joined(labels)}: some of it has no counterpart "
        "in the traces of the peers; record all ranks over the same time"
    )


@sentence("path-alone", "peers_missing")
def path_alone_peers_missing(labels: Sequence[str]) -> str:
    return (
        f"the critical path stays on its rank in {joined(labels)}: no peer's trace says whether "
        "it was waiting there; give all ranks"
    )


# Roles and weight updates


@sentence("role-clock")
def role_clock(role: str, other_role: str) -> str:
    return (
        f"nothing ties the clock of role {role} to that of {other_role}: their times are "
        "compared as recorded"
    )


@sentence("role-order")
def role_order(role: str) -> str:
    return (
        f"the files of role {role} do not say their rank and nothing ties them to the other "
        "roles: they are numbered by name, so that figures of single ranks may be those of "
        "another rank"
    )


@sentence("role-ranks")
def role_ranks(roles: Sequence[str], counts: Sequence[int]) -> str:
    ranks_by_role = ", ".join(f"{role} {count}" for role, count in zip(roles, counts, strict=True))
    return (
        f"roles have different numbers of ranks ({ranks_by_role}): their GPUs are counted apart, "
        "not as shared"
    )


@sentence("role-without-gpu")
def role_without_gpu(role: str, ranks: Sequence[int]) -> str:
    return (
        f"role {role}: rank {listed(ranks)} has no GPU events; its part of updates and "
        "iterations is unknown"
    )


@sentence("role-unknown")
def role_unknown(role: str) -> str:
    return f"role {role} neither trains, generates nor moves weights, as far as its events show"


@sentence("role-missing", "trainer")
def role_missing_trainer() -> str:
    return "no role trains: iterations need the trainer's traces too (--role trainer=PATH)"


@sentence("role-missing", "inference")
def role_missing_inference() -> str:
    return (
        "no process that takes the weights is recorded: reloads, their overlap and the ideal of "
        "the weight update are unknown; record the inference engine too, and name both: --role "
        "server=PATH --role worker=PATH"
    )


@sentence("weight-updates-differ")
def weight_updates_differ(numbers: Sequence[int], counted: int) -> str:
    return (
        f"ranks have different numbers of weight updates ({joined(numbers)}): only ranks with "
        f"{counted} are counted"
    )


@sentence("weights-not-reloaded")
def weights_not_reloaded(reloaded_bytes: int, bytes: int) -> str:
    return (
        f"workers took {reloaded_bytes:,} of {bytes:,} bytes: part of the update was not "
        "recorded, or not applied"
    )
