"""Changed saved analyses and baselines: an error in one line, or the values of their JSON.

No slow run passes.
"""

from __future__ import annotations

import copy
import json
import math
import random
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.diffs.gates.conftest import QUIET, document
from tests.fuzz.change import changed
from tests.fuzz.others import one_line
from tracekit.diffs import Side, from_analysis, gate
from tracekit.diffs.baseline import dump
from tracekit.errors import TracekitError
from tracekit.results.analysis import read_analysis

NAMES = ("candidate", "baseline", "file")
SLOWDOWN = 1.10
"""Step time of the candidate over that of the baseline: the gate calls it regressed."""
CLEAR_SLOWDOWN = 1.05
"""Ratio of median step times from which no gate may pass; the floor of the gate is 1.0285."""
WORDS = (
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1",
        "0",
        "null",
        "true",
        '""',
        '"x"',
        "[]",
        "{}",
        "1e308",
        "-0.0",
    ),
    *(
        "9223372036854775807",
        "9223372036854775808",
        "1" + "0" * 40,
        "0.5",
        '"\\ud800"',
        '"NaN"',
        "[1]",
        '{"a": 1}',
        "1" + "0" * 400,
    ),
)
"""JSON texts to put in the place of a value; the first four are not finite."""
_MARK = "@@changed@@"


@cache
def _files() -> dict[str, bytes]:
    """Return the sound files: the slow candidate, its baseline, and the same baseline as a baseline file."""
    slow, base = document([ms * SLOWDOWN for ms in QUIET]), document(QUIET)
    return {
        "candidate": json.dumps(slow).encode(),
        "baseline": json.dumps(base).encode(),
        "file": dump(Side((from_analysis(base, name="base"),), {})).encode(),
    }


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in plain data."""
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(below for key, child in children for below in _paths(child, (*path, key)))]


@cache
def _paths_of(name: str) -> list[tuple[Any, ...]]:
    return _paths(json.loads(_files()[name]))[1:]


def _change_value(data: Any, path: tuple[Any, ...], choose: random.Random) -> None:
    """Replace, remove or repeat the value at *path*, if the changes before this one left it there."""
    try:
        for key in path[:-1]:
            data = data[key]
        value = data[path[-1]]
    except (KeyError, IndexError, TypeError):
        return
    if not isinstance(data, dict | list):
        return
    kind = choose.randrange(8)
    if kind < 5:
        data[path[-1]] = _MARK
    elif kind == 5:
        del data[path[-1]]
    elif isinstance(data, list):
        data.insert(path[-1], copy.deepcopy(value))
    elif isinstance(value, int | float):
        data[path[-1]] = value * choose.choice((-1, 2, 1000, 0.5))


def make(choose: random.Random, names: Sequence[str] = NAMES) -> bytes:
    """Return the name of a file on the first line, then the file with values or bytes changed."""
    name = choose.choice(names)
    raw = _files()[name]
    if choose.random() < 0.2:
        return name.encode() + b"\n" + changed(raw, choose, times=choose.randrange(1, 4))
    data = json.loads(raw)
    for _ in range(choose.randrange(1, 4)):
        _change_value(data, choose.choice(_paths_of(name)), choose)
    pieces = json.dumps(data).split(f'"{_MARK}"')
    text = pieces[0] + "".join(choose.choice(WORDS) + piece for piece in pieces[1:])
    return name.encode() + b"\n" + text.encode()


def make_saved(choose: random.Random) -> bytes:
    """Return a changed analysis, under its name."""
    return make(choose, ("candidate", "baseline"))


def _plain(raw: bytes) -> Any:
    """Return what an independent reader reads; None if it is not JSON with finite numbers."""
    try:
        return json.loads(raw, parse_constant=lambda word: 1 / 0)
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


def _step_ms(plain: Any) -> list[float]:
    """Return the step times in a document: of a baseline file, or of the slowest rank of an analysis."""
    if plain["format"] == "tracekit.baseline/1":
        return [value for run in plain["runs"] for value in run["samples"].get("step_ms", ())]
    by_rank = [
        {step["step"]: step["span_ns"] / 1e6 for step in rank["per_step"]}
        for rank in plain["ranks"]
    ]
    if not all(by_rank):
        return [
            max(rank["span_ns"] for rank in plain["ranks"])
            / 1e6
            / max(len(plain["ranks"][0]["steps"]), 1)
        ]
    return [max(rank[step] for rank in by_rank) for step in set.intersection(*map(set, by_rank))]


def _check_same(read: Any, plain: Any, path: str = "$") -> None:
    """Raise if a value was read as another one.

    Keys that only one of the two has are of other versions.
    """
    if isinstance(read, dict):
        for key in read.keys() & plain.keys():
            _check_same(read[key], plain[key], f"{path}.{key}")
    elif isinstance(read, list):
        assert len(read) == len(plain), f"{path} has another length"
        for i, (item, other) in enumerate(zip(read, plain, strict=True)):
            _check_same(item, other, f"{path}[{i}]")
    else:
        same = (
            math.isclose(read, plain)
            if isinstance(read, float) and isinstance(plain, int)
            else read == plain
        )
        assert same, f"{path}: {plain!r} was read as {read!r}"


def _check_finite(value: Any) -> None:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_finite(item)
    assert not isinstance(value, float) or math.isfinite(value), (
        "a verdict rests on a number that is not finite"
    )


def check_saved(raw: bytes, folder: Path) -> None:
    """Read a saved analysis back; raise if it holds another value than its JSON."""
    text = raw.partition(b"\n")[2]
    path = folder / "saved.json"
    path.write_bytes(text)
    try:
        saved = read_analysis(path)
    except TracekitError as error:
        one_line(error)
        return
    plain = _plain(text)
    assert plain is not None, "what is not JSON was read"
    read = json.loads(saved.to_json())
    _check_same(read, plain)
    _check_finite(read)
    for rank in saved.ranks:
        assert rank.whole.bubble_fraction is None or math.isfinite(rank.whole.bubble_fraction)


def check(raw: bytes, folder: Path) -> None:
    """Gate the slow candidate with one file changed.

    Raise if it passes while its steps are still slower.
    """
    changed_name, _, text = raw.partition(b"\n")
    files = {**_files(), changed_name.decode(): text}
    baseline = "file" if changed_name == b"file" else "baseline"
    for name in ("candidate", baseline):
        (folder / f"{name}.json").write_bytes(files[name])
    try:
        result = gate([folder / "candidate.json"], [folder / f"{baseline}.json"])
        verdict = json.loads(result.to_json())
    except TracekitError as error:
        one_line(error)
        return
    _check_finite(verdict)
    plain = _plain(text)
    assert plain is not None, "what is not JSON was judged"
    sound = json.loads(_files()[changed_name.decode()])
    if plain == sound:
        assert verdict["verdict"] == "regressed", "the same file got another verdict"
    if plain.get("noise") != sound.get("noise"):
        return  # more noise explains more
    candidate_ms = _step_ms(
        plain if changed_name == b"candidate" else json.loads(files["candidate"])
    )
    baseline_ms = _step_ms(plain if changed_name != b"candidate" else json.loads(files[baseline]))
    if verdict["verdict"] == "pass":
        assert candidate_ms, "a candidate without steps passed"
        assert baseline_ms, "no step was compared with"
        assert min(*candidate_ms, *baseline_ms) > 0, "a step of no time passed"
        ratio = statistics.median(candidate_ms) / statistics.median(baseline_ms)
        assert ratio < CLEAR_SLOWDOWN, f"{ratio:.3f} times the step time passed"
