"""Words about the time of a step: without the profiler, of the kinds of steps of a server, and those that stand out."""

from collections.abc import Sequence

from tracekit._util.text import counted, join_with_and, percent, short_ms
from tracekit.documents.analysis import Step, StepKind, StepTime
from tracekit.report.text import ms_range

MIN_RANGE_TO_SHOW = 0.15
"""Width of the range of a step without the profiler, as a share of it, from which it is shown though the profiler
added little: where the GPU is the limit it is 0.14."""
MAX_UNUSUAL_NAMED = 3
"""Steps that stand out and are named with their time."""


def times_of_kinds(kinds: Sequence[StepKind], step: Step) -> str:
    """Return how long each kind of step of an inference server takes, in few words.

    A single step takes what the first screen's shares are of; of steps that do not follow each other
    only the GPU's work is known.

    >>> decode = StepKind(kind="decode", steps=40, time_ns=9_800_000, interval_ns=12_100_000, requests=32)
    >>> prefill = StepKind(kind="prefill", steps=1, time_ns=493_000_000, tokens=15360)
    >>> times_of_kinds([prefill, decode], Step.of(None))
    'prefill 493 ms of GPU work (15,360 tokens), decode 12.1 ms (32 sequences)'
    >>> times_of_kinds([prefill], Step.of(590_000_000, per_step=(StepTime(0, 590_000_000),)))
    'prefill 590 ms (15,360 tokens)'
    """
    single_ns = None
    if step.single and step.stated_ns is not None:
        single_ns = step.stated_ns - step.stated_budget.unrecorded_ns
    texts = []
    for kind in kinds:
        known_ns = single_ns if kind.interval_ns is None else kind.interval_ns
        time = f"{short_ms(kind.time_ns)} of GPU work" if known_ns is None else short_ms(known_ns)
        batch = ""
        if kind.kind == "decode" and kind.requests:
            batch = f" ({counted(kind.requests, 'sequence')})"
        elif kind.tokens:
            batch = f" ({counted(kind.tokens, 'token')})"
        texts.append(f"{kind.kind} {time}{batch}")
    return ", ".join(texts)


def kind_sentence(kind: StepKind, *, with_profiler: bool = False) -> str:
    """Return what is known about one kind of step: GPU work, tail, busy share, tokens per second, growth.

    *with_profiler*: its times hold what the profiler costs, and others on the screen do not.

    >>> decode = StepKind(kind="decode", steps=40, time_ns=9_800_000, interval_ns=12_100_000, gpu_busy=0.81)
    >>> kind_sentence(decode)
    'decode, 40 steps: 9.8 ms of GPU work; a step ends every 12.1 ms (GPU busy 81 %)'
    """
    work = f"{short_ms(kind.time_ns)} of GPU work"
    if kind.time_tail_ns is not None:
        work += f" (95 % of the steps within {short_ms(kind.time_tail_ns)})"
    facts = [work]
    if kind.interval_ns is not None:
        tail = ""
        if kind.interval_tail_ns is not None:
            tail = f", 95 % within {short_ms(kind.interval_tail_ns)}"
        busy = percent(kind.gpu_busy, digits=0)
        facts.append(f"a step ends every {short_ms(kind.interval_ns)}{tail} (GPU busy {busy})")
    if kind.gap_ns:
        facts.append(f"{short_ms(kind.gap_ns)} without GPU work before it")
    if kind.tokens_per_s is not None:
        facts.append(f"{kind.tokens_per_s:,.0f} tokens a second")
    if kind.ns_per_token is not None and kind.ns_per_token > 0:
        facts.append(f"1,000 further tokens add {short_ms(1_000 * kind.ns_per_token)}")
    recorded = " as recorded" if with_profiler else ""
    return f"{kind.kind}, {counted(kind.steps, 'step')}{recorded}: {'; '.join(facts)}"


def free_step_words(step: Step) -> str:
    """Return the step without the profiler, and as recorded; empty where they are alike, or it is not known.

    >>> free = {"free_ns": 15_000_000, "free_range_ns": (14_400_000, 16_100_000), "free_from": "modelled"}
    >>> free_step_words(Step.of(23_200_000, **free))
    '15.0 ms without the profiler (estimated: 14.4–16.1), 23.2 ms as recorded'
    >>> free_step_words(Step.of(15_300_000, **free))
    ''
    """
    if step.free_ns is None or not step.profiler_ns:
        return ""
    origin = "timed" if step.free_from == "timed" else f"estimated: {_range_words(step)}"
    return f"{short_ms(step.free_ns)} without the profiler ({origin}), {short_ms(step.time_ns or 0)} as recorded"


def origin_of_free_step(step: Step) -> str:
    """Return where the step without the profiler comes from, and the recorded one; empty where they are alike.

    >>> free = {"free_ns": 15_000_000, "free_range_ns": (14_400_000, 16_100_000), "free_from": "modelled"}
    >>> origin_of_free_step(Step.of(23_200_000, **free))
    '15.0 ms is an estimate (14.4–16.1); with the profiler a step took 23.2 ms'
    """
    if step.free_ns is None or not step.profiler_ns:
        return ""
    time = short_ms(step.free_ns)
    origin = f"{time} is an estimate ({_range_words(step)})"
    if step.free_from == "timed":
        origin = f"{time} was timed before the profiler started"
    subject = "a step" if step.marked else "all of it"
    return f"{origin}; with the profiler {subject} took {short_ms(step.time_ns or 0)}"


def wide_range(step: Step) -> str:
    """Return the range of the step without the profiler where that is about as long as recorded, and the range wide.

    >>> wide, narrow = ((15_000_000 - off, 15_000_000 + off) for off in (2_100_000, 900_000))
    >>> wide_range(Step.of(15_300_000, free_ns=15_000_000, free_range_ns=wide))
    'without the profiler 12.9–17.1 ms'
    >>> wide_range(Step.of(15_300_000, free_ns=15_000_000, free_range_ns=narrow))
    ''
    """
    if step.free_ns is None or step.free_range_ns is None:
        return ""
    if step.profiler_ns or step.free_from == "timed":
        return ""
    least_ns, most_ns = step.free_range_ns
    is_wide = most_ns - least_ns > MIN_RANGE_TO_SHOW * step.free_ns
    least, most = short_ms(least_ns), short_ms(most_ns)
    least = least.removesuffix(most[most.rfind(" ") :])
    return f"without the profiler {least}–{most}" if is_wide else ""


def _range_words(step: Step) -> str:
    """Return the range of the step without the profiler, in the unit of the step itself."""
    range_ns = step.free_range_ns or (step.free_ns or 0, step.free_ns or 0)
    least, most = (short_ms(ns).removesuffix(" ms") for ns in range_ns)
    return f"{least}–{most}"


def unusual_steps(step: Step) -> str:
    """Return the number of steps that the time is the median of, and those that stand out.

    >>> from tracekit.documents.analysis import StepTime
    >>> times = [StepTime(4, 15_900_000), StepTime(5, 175_000_000), StepTime(6, 17_700_000)]
    >>> unusual_steps(Step.of(17_700_000, per_step=times, unusual=times[1:2]))
    '2 steps take 16–18 ms, step 5 takes 175 ms'
    >>> times = [StepTime(0, 4_500_000_000), StepTime(1, 15_900_000), StepTime(2, 17_700_000)]
    >>> unusual_steps(Step.of(17_700_000, per_step=times, unusual=times[:1]))
    '2 steps take 16–18 ms, step 0 takes 4.50 s (the first)'
    """
    if len(step.per_step) < 2:
        return ""
    if step.in_turn_ns:
        return steps_in_turn(step.in_turn_ns)
    if not step.unusual:
        return f"median of {counted(len(step.per_step), 'step')}"
    usual_times = ms_range(each.time_ns for each in step.usual)
    parts = [f"{counted(len(step.usual), 'step')} take {usual_times}"]
    for each in step.unusual[:MAX_UNUSUAL_NAMED]:
        first = " (the first)" if is_longer_first(each, step) else ""
        parts.append(f"step {each.step} takes {short_ms(each.time_ns)}{first}")
    more = len(step.unusual) - MAX_UNUSUAL_NAMED
    if more > 0:
        parts.append(f"{more} more stand out")
    return ", ".join(parts)


def steps_in_turn(times_ns: Sequence[int]) -> str:
    """Return how steps alternate.

    >>> steps_in_turn([33_000_000, 114_000_000])
    'steps take 33.0 ms and 114 ms in turn'
    >>> steps_in_turn([33_000_000, 33_500_000, 33_200_000, 114_000_000])
    'of every 4 steps one takes 114 ms, the others 33–34 ms'
    """
    if len(times_ns) == 2:
        return f"steps take {join_with_and(map(short_ms, times_ns))} in turn"
    longest = max(times_ns)
    others = list(times_ns)
    others.remove(longest)
    return f"of every {len(times_ns)} steps one takes {short_ms(longest)}, the others {ms_range(others)}"


def is_longer_first(each: StepTime, step: Step) -> bool:
    """Return whether a step that stands out is the first one, which starts what the others use."""
    return each is step.per_step[0] and each.time_ns > (step.time_ns or 0)
