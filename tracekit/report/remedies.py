"""What to do about exposed time, by its cause: words for the advice, as data."""

from __future__ import annotations

from tracekit.analysis import Measured

BECAUSE = {
    "same_stream": "queued on the compute stream",
    "one_queue": "compute sat behind it in a shared hardware queue",
    "launched_late": "launched too late",
    "nothing_to_hide": "no independent compute was left",
    "compute_waited": "compute waited for it at once",
    "peer_late": "a peer came late",
    "unknown": "the trace does not say why",
}
"""Each cause in a few words, to follow "because"."""

FIXES = {
    "same_stream": "run it on a stream of its own (async_op=True, a side stream) and let compute wait for its event",
    "one_queue": "set CUDA_DEVICE_MAX_CONNECTIONS higher (8 or more), or launch the compute before it",
    "launched_late": "launch earlier: CUDA graphs, fewer small kernels, less Python between launches",
    "nothing_to_hide": "give it compute: smaller buckets that start earlier, or another micro-batch beside it",
    "compute_waited": "start it earlier than its result is needed: prefetch, or move the wait to the first use",
    "peer_late": "balance the ranks (see whom the others wait for): the transfer itself is not what takes the time",
    "unknown": "record launches and all ranks (`tracekit doctor` says how)",
}
"""What to change, by cause."""


def main_cause(measured: Measured, label: str) -> tuple[str, float] | None:
    """Return the largest cause of a label's exposed time and its share of that time; None where nothing is exposed.

    >>> from tracekit import analyze
    >>> main_cause(analyze("sample_traces/steps/straggler", schedule="none").total, "pp_comm")[0]
    'peer_late'
    """
    causes = measured.because_ns.get(label) or {}
    exposed = sum(causes.values())
    if not exposed:
        return None
    cause = max(causes, key=lambda name: causes[name])
    return cause, causes[cause] / exposed
