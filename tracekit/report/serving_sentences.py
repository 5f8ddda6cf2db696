"""The texts of findings in the words of inference, where those of training do not fit.

Inference has no optimizer and no gradients. A server takes requests: its batch is the sequences that
it serves at once, and its host schedules, samples and detokenizes between steps. A program that runs
its model forward without generating tokens is spoken of in plainer words.
"""

from collections.abc import Callable

from tracekit.report.evidence_words import FindingWords
from tracekit.report.finding_sentences import (
    FindingTexts,
    MakeTexts,
    exposed_because,
    first_slow_kernel,
    host_stops,
    step_takes,
)

SERVING_TEXTS: dict[tuple[str, str], MakeTexts] = {}
"""Functions by code and case; a case that is not here has the texts of every run."""
BESIDE_THE_GPU = (
    "schedule, sample and detokenize while the GPU runs (SGLang's overlap schedule, vLLM's "
    "`--async-scheduling`) or in another process"
)


def serving_texts(code: str, *cases: str) -> Callable[[MakeTexts], MakeTexts]:
    """Enter a function as the one that makes the texts of some cases of a code."""

    def enter(function: MakeTexts) -> MakeTexts:
        for case in cases or ("",):
            SERVING_TEXTS[code, case] = function
        return function

    return enter


# What a server does, and any other program that runs a model forward.


def run_more_at_once(words: FindingWords) -> str:
    return "serve more sequences at once" if words.generates else "compute more inputs at once"


def beside_the_gpu(words: FindingWords) -> str:
    if words.generates:
        return BESIDE_THE_GPU
    return "do this ahead of time, while the GPU runs, or in another process"


def results(words: FindingWords) -> str:
    return "the sampled tokens" if words.generates else "results"


def host_activities(words: FindingWords) -> str:
    if words.generates:
        return "scheduling, sampling, detokenizing, garbage collection"
    return "preparing inputs, garbage collection"


def program(words: FindingWords) -> str:
    return "server" if words.generates else "program"


@serving_texts("launch_bound")
def launch_bound(words: FindingWords) -> FindingTexts:
    advice = f"replay steps as {words.graphs}, fuse small kernels, or {run_more_at_once(words)}"
    if words.between_steps:
        advice = beside_the_gpu(words)
    return FindingTexts(
        text=(
            "the CPU takes longer to start the GPU's work than the GPU takes to run it: "
            f"{words['events_per_step']} kernels and copies {words.per_step}, {words['mean_event_ns']} each on "
            f"average{words.between_steps}{words.on_new_shapes}"
        ),
        advice=f"{advice}{words.keep_shapes}",
    )


@serving_texts("launch_bound", "under_graphs")
def launch_bound_under_graphs(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            "the CPU takes longer to start the GPU's work than the GPU takes to run it, although "
            f"{words.graphs} are used{words.between_steps}"
        ),
        advice=(
            "capture the batch sizes that still run without a graph, use whole graphs instead of "
            "piecewise ones, and do less in Python between their launches"
        ),
    )


@serving_texts("host_compute")
def host_compute(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the GPU is idle for {words.cost} because the CPU computes, mostly "
            f"{words['name']}{words.between_steps}"
        ),
        advice="move this work to the GPU, or run it while the GPU works on the next step",
    )


@serving_texts("python", "", "stacks_not_read", "outside_stacks")
def python(words: FindingWords) -> FindingTexts:
    where = {
        "": "; record with `with_stack=True` to see the function",
        "stacks_not_read": (
            "; write a page (`-o page.html`) or read the stacks (`analyze(..., stacks=True)`) to see the function"
        ),
    }
    return FindingTexts(
        text=(
            f"the GPU is idle for {words.cost} because the CPU runs Python that calls no "
            f"PyTorch{words.between_steps}"
        ),
        advice=f"{beside_the_gpu(words)}{where.get(words.finding.case, '')}",
    )


@serving_texts("python", "with_source")
def python_with_source(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the GPU is idle for {words.cost} because the CPU runs Python, in "
            f"{words.source}{words.between_steps}"
        ),
        advice=beside_the_gpu(words),
    )


@serving_texts("host_sync", "value")
def host_sync_value(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=host_stops(words),
        advice=(
            "keep values on the GPU (`.item()`, `if tensor`), log every N steps, and take "
            f"{results(words)} while the next step runs"
        ),
    )


@serving_texts("host_sync", "copy")
def host_sync_copy(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=host_stops(words),
        advice=(
            "copy with `non_blocking=True` from or into pinned memory (`.cpu()` and `.tolist()` always "
            f"wait), and take {results(words)} while the next step runs"
        ),
    )


@serving_texts("slow_step", "prefill")
def slow_step_prefill(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"in {words['delayed_steps']} of {words['decode_steps']} decode steps the sequences wait "
            f"{words['delay_ns']} for a prefill; otherwise a token takes {words['usual_ns']}"
        ),
        advice=(
            "compute prefills in smaller pieces beside decode (SGLang `--chunked-prefill-size`, vLLM "
            "`--max-num-batched-tokens`), or on other GPUs: tokens then come more evenly, not sooner in all"
        ),
    )


@serving_texts("slow_step", "data_loading")
def slow_step_data_loading(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{step_takes(words)}: it waits {words['extra_ns']} longer for its input{words.while_others_wait}",
        advice="prepare inputs ahead of time, in another process",
    )


@serving_texts("exposed_comm", "same_stream", "nothing_to_hide", "compute_waited")
def exposed_comm_needed_next(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=exposed_because(words, "the next compute waits for its result"),
        advice=MESSAGE_ADVICE.get(str(words.evidence.get("label")), TWO_HALVES),
    )


TWO_HALVES = "let two halves of the batch take turns, so that one computes while the other sends"
MESSAGE_ADVICE = {
    "tp_comm": (
        "for small messages use one-shot all-reduce kernels (the server's custom all-reduce), fused "
        "with the norm behind them; for large ones let two halves of the batch take turns"
    ),
    "ep_dispatch": f"{TWO_HALVES}, and use low-latency kernels (DeepEP) in decode",
    "ep_combine": f"{TWO_HALVES}, and use low-latency kernels (DeepEP) in decode",
}
"""What makes communication cheaper that the next compute waits for, by label."""


@serving_texts("late_host")
def late_host(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the others wait {words['late_ns']}{words.in_steps} for rank {words.rank}, whose "
            "process starts its work late"
        ),
        advice=f"see what that process does then: {host_activities(words)}",
    )


@serving_texts("late_host", "together")
def late_host_together(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the others wait {words['late_ns']}{words.in_steps} for {words.ranks_named}, whose "
            "processes start their work late together"
        ),
        advice=f"mend all of them, one alone saves little: see what they do then ({host_activities(words)})",
    )


@serving_texts("slow_kernel", "few_tiles")
def slow_kernel_few_tiles(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{first_slow_kernel(words)}, because its result has fewer tiles than the GPU has "
            "multiprocessors"
        ),
        advice=(
            f"{run_more_at_once(words)}, use a kernel that splits the inner size (split-K), or join "
            f"products into one (a fused QKV projection)"
        ),
    )


@serving_texts("slow_kernel", "short_sequence")
def slow_kernel_short_sequence(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"{first_slow_kernel(words)}, because its sequences are short",
        advice=(
            "use an attention kernel that splits the keys (FlashDecoding, paged attention), or "
            f"{run_more_at_once(words)}"
        ),
    )


@serving_texts("slow_kernel", "few_tokens")
def slow_kernel_few_tokens(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{first_slow_kernel(words)}, because its experts get few tokens each (it moves more than "
            "it computes)"
        ),
        advice=f"{run_more_at_once(words)}, or put fewer experts on a GPU",
    )


@serving_texts("slow_kernel", "product")
def slow_kernel_product(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=first_slow_kernel(words),
        advice=(
            'try another kernel (`torch.compile(mode="max-autotune")`, a tuned library) or '
            f"{run_more_at_once(words)}"
        ),
    )


@serving_texts("out_of_memory")
def out_of_memory(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"{words.of_gpu} ran out of memory: {words['requested_bytes']} were asked "
            f"for{words.failed_in} while {words['allocated_bytes']} were in use and "
            f"{words.free_then}; {words.why_out_of_memory}"
        ),
        advice="give the cache of keys and values less memory, or compute fewer tokens in a step",
    )


@serving_texts("precision", "", "narrow")
def precision_narrow(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=f"products and attention run in float32: {words['work_ns']} of GPU time",
        advice=f"load the weights in {words['change_to']} and compute in it",
    )


@serving_texts("unfused", "loss")
def unfused_sampling(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            f"the head reads and writes its logits over the whole vocabulary in "
            f"{words['kernels_per_step']} kernels ({words['work_ns']})"
        ),
        advice="fuse sampling into one kernel, or compute logits only for the tokens that are sampled",
    )


@serving_texts("busy_cpu")
def busy_cpu(words: FindingWords) -> FindingTexts:
    return FindingTexts(
        text=(
            "operators that usually take microseconds stand still for milliseconds again and again: "
            "other processes share the CPU"
        ),
        advice=(
            f"give the {program(words)} cores of its own: fewer threads (`OMP_NUM_THREADS`), other jobs "
            "elsewhere, no limit of CPU time"
        ),
    )
