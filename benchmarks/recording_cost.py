"""Cost of PyTorch's profiler: measure the constants of the step without it, and how far the model is off.

    python benchmarks/recording_cost.py errors FOLDER...
    python benchmarks/recording_cost.py record FOLDER [--steps 4]
    python benchmarks/recording_cost.py fit FOLDER...

``record`` needs a GPU: it times a few loops without the profiler, records them under each set of
options, times them again after each, and writes the traces and ``truth.json`` to FOLDER. ``errors``
holds the free step of every recording in folders with a ``truth.json`` against the mean of the
timings just before and after it. ``fit`` looks for the costs per operator, per call of the GPU's
library and per shape that fit them best (``tracekit/graph/constants.py``).

``truth.json``: ``{"runs": {LOOP: {"free_ms": [before, after the first, ...], "recorded_ms": {OPTION:
ms, ...}}}}`` with traces in LOOP/OPTION, or ``"free_ms"`` with one or two timings and the trace in
LOOP. The profiler stays attached to a process that has recorded, which slows the host of the later
timings by 20 to 60 % where the host is the limit: the first timing is of a process that was never
profiled.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

OPTIONS: dict[str, dict[str, bool]] = {
    "bare": {},
    "shapes": {"record_shapes": True},
    "memory": {"record_shapes": True, "profile_memory": True},
    "stacks": {"record_shapes": True, "with_stack": True},
}
TIMED_STEPS = 12


class Recording(NamedTuple):
    """One recording of a loop whose time without the profiler is known."""

    name: str
    path: Path
    free_ms: tuple[float, float]
    """Just before and just after it."""


def recordings_of(folder: Path) -> Iterator[Recording]:
    """Yield the recordings of a folder with ``truth.json``; those of GPU activities alone have no host."""
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    for loop, run in truth["runs"].items():
        free_ms = run["free_ms"] if isinstance(run["free_ms"], list) else [run["free_ms"]] * 2
        options = [name for name in run.get("recorded_ms", {}) if (folder / loop / name).is_dir()]
        if not options:
            yield Recording(loop, folder / loop, (free_ms[0], free_ms[-1]))
        for i, option in enumerate(options):
            if option != "gpu-only":
                timings = (free_ms[i], free_ms[i + 1])
                yield Recording(f"{loop}/{option}", folder / loop / option, timings)


def errors(folders: list[Path]) -> None:
    """Print the error of every free step, and how many lie in their ranges."""
    from tracekit import analyze

    rows = []
    print(f"{'recording':32} {'recorded':>9} {'free':>8} {'range':>15} {'timed':>13} {'error':>7}")
    for folder in folders:
        for recording in recordings_of(folder):
            step = analyze(recording.path, schedule="none").step
            if step.free_ns is None or step.free_range_ns is None or step.time_ns is None:
                print(f"{recording.name:32} the step without the profiler is not known")
                continue
            timed_ms = sum(recording.free_ms) / 2
            low, high = (ns / 1e6 for ns in step.free_range_ns)
            error = step.free_ns / 1e6 / timed_ms - 1
            is_inside = low <= timed_ms <= high
            width = (high - low) / (step.free_ns / 1e6)
            rows.append((abs(error), step.time_ns / 1e6 / timed_ms - 1, is_inside, width))
            print(
                f"{recording.name:32} {step.time_ns / 1e6:9.2f} {step.free_ns / 1e6:8.2f} "
                f"{low:7.2f}–{high:<7.2f} {recording.free_ms[0]:6.2f}–{recording.free_ms[1]:<6.2f} "
                f"{error:+7.1%}{'' if is_inside else '  outside its range'}"
            )
    error, uncorrected, inside, width = np.array(rows).T
    print(
        f"{len(rows)} recordings: median error {np.median(error):.1%}, nine of ten within "
        f"{np.quantile(error, 0.9):.1%}, {np.mean(error < 0.25):.0%} within 25 % (as recorded: "
        f"median {np.median(np.abs(uncorrected)):.1%}); {inside.mean():.0%} inside their ranges, "
        f"which are {np.median(width):.0%} wide (largest {width.max():.0%})"
    )


def fit(folders: list[Path]) -> None:
    """Print the costs that give the smallest errors on a grid around the present ones."""
    from tracekit import analyze
    from tracekit.graph import constants, recording_cost

    recordings = [recording for folder in folders for recording in recordings_of(folder)]
    names = ("OPERATOR_COST_NS", "SHAPES_COST_NS", "GPU_CALL_COST_NS", "PYTHON_FRAME_COST_NS")
    costs = {name: getattr(constants, name) for name in names}

    def mean_error() -> float:
        found = []
        for recording in recordings:
            free_ns = analyze(recording.path, schedule="none").step.free_ns
            if free_ns is not None:
                found.append(abs(free_ns / 1e6 / (sum(recording.free_ms) / 2) - 1))
        return float(np.mean(found))

    least = mean_error()
    print(f"{costs}: mean error {least:.2%}")
    for name in names:  # one cost after the other: they hardly depend on each other
        for factor in (0.7, 0.85, 1.15, 1.3):
            setattr(recording_cost, name, costs[name] * factor)
            error = mean_error()
            print(f"{name} {costs[name] * factor:.0f}: mean error {error:.2%}")
            if error < least:
                least, costs[name] = error, costs[name] * factor
        setattr(recording_cost, name, costs[name])
    print(f"best: {costs}: mean error {least:.2%}")


def record(folder: Path, steps: int) -> None:
    """Time and record a few loops on the GPU of this machine."""
    import torch

    runs: dict[str, Any] = {}
    for name, (width, tokens, layers) in {
        "host-bound": (256, 64, 12),
        "between": (1024, 1024, 8),
        "gpu-bound": (2048, 4096, 8),
    }.items():
        train = transformer_loop(torch, width, tokens, layers)
        free_ms = [time_free(torch, train)]
        recorded_ms = {}
        for option, arguments in OPTIONS.items():
            recorded_ms[option] = record_option(
                torch, train, folder / name / option, steps, arguments
            )
            free_ms.append(time_free(torch, train))
        runs[name] = {"free_ms": free_ms, "recorded_ms": recorded_ms}
        print(name, runs[name])
    source = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    text = json.dumps({"source": source, "runs": runs}, indent=1)
    (folder / "truth.json").write_text(text, encoding="utf-8")


def transformer_loop(torch: Any, width: int, tokens: int, layers: int) -> Any:
    """Return a function that trains a transformer for one step."""
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, layers).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(1, tokens, width, device="cuda", dtype=torch.bfloat16)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(TIMED_STEPS):
        train()
    return train


def time_free(torch: Any, train: Any) -> float:
    """Return the milliseconds of a step between two synchronisations."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(TIMED_STEPS):
        train()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / TIMED_STEPS * 1e3


def record_option(
    torch: Any, train: Any, folder: Path, steps: int, arguments: dict[str, bool]
) -> float:
    """Record a few steps; return the milliseconds that one took."""
    folder.mkdir(parents=True, exist_ok=True)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=steps, repeat=1)
    with torch.profiler.profile(
        schedule=schedule,
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / "trace.json.gz")),
        **arguments,
    ) as profile:
        train()
        profile.step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for step in range(steps):
            train()
            if step == steps - 1:
                torch.cuda.synchronize()
                elapsed = time.perf_counter() - start
            profile.step()
    return elapsed / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("errors", "record", "fit"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    if options.what == "record":
        record(options.folders[0], options.steps)
    elif options.what == "fit":
        fit(options.folders)
    else:
        errors(options.folders)


if __name__ == "__main__":
    main()
