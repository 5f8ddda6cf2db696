"""Inputs of the gate's action: names of files and gates, requirements, and a workspace full of traps.

The scripts of ``ci/action.yml`` run in bash; the Python that they call is a stand-in that writes
down its words.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from functools import cache
from pathlib import Path

ACTION = Path(__file__).parents[2] / "ci" / "action.yml"
WORDS = (
    *("runs/new", "--update-baseline", "-o", "a b", "$(touch ran)", "`touch ran`", "; touch ran"),
    *("&& touch ran", "*", "?", "~", "\\", "'", '"', "\n", "\t", "x=y", "${HOME}", "<(touch ran)"),
    *("| touch ran", ">ran", "é", "!!", "#", "%s", "--", "-", "::error::x", "verdict=pass"),
)
STAND_IN = """#!/bin/sh
if [ "$2" = -c ]; then echo regressed; else for word in "$@"; do printf '%s\\0' "$word" >> "$CALLS"; done; fi
"""


@cache
def _gate_step() -> dict:
    import yaml

    steps = yaml.safe_load(ACTION.read_text(encoding="utf-8"))["runs"]["steps"]
    return next(step for step in steps if step.get("id") == "gate")


def make(choose: random.Random) -> bytes:
    """Values of the action's inputs, and of variables that shells run."""
    inputs = {}
    for name in ("CANDIDATE", "BASELINE", "REQUIRE", "INCONCLUSIVE", "NAME", "ARTIFACT"):
        words = [choose.choice(WORDS) for _ in range(choose.randrange(4))]
        inputs[name] = choose.choice((" ", "\n", "")).join(words)
    variables = {}
    for name in ("BASH_ENV", "ENV", "BASH_FUNC_printf%%", "SHELLOPTS", "IFS", "CDPATH", "PS4"):
        if choose.random() < 0.4:
            variables[name] = choose.choice(
                ("trap.sh", "() { touch ran; }", "xtrace", "/", "$(touch ran)")
            )
    return json.dumps([inputs, variables]).encode()


def check(raw: bytes, folder: Path) -> None:
    """Run the step; raise if anything but its stand-in ran, or a file became an option."""
    inputs, variables = json.loads(raw)
    work = folder / "work"
    tools = folder / "bin"
    for path in (work, tools):
        path.mkdir(exist_ok=True)
    (work / "trap.sh").write_text("touch ran\n", encoding="utf-8")
    for name in ("json.py", "tracekit.py", "pip.py"):
        (work / name).write_text("open('ran', 'w')", encoding="utf-8")
    (tools / "python").write_text(STAND_IN, encoding="utf-8")
    (tools / "python").chmod(0o755)
    (folder / "step.sh").write_text(_gate_step()["run"], encoding="utf-8")
    for name in ("calls", "output"):
        (folder / name).unlink(missing_ok=True)
    environment = {
        **variables,
        **inputs,
        "PATH": f"{tools}:/usr/bin:/bin",
        "CALLS": str(folder / "calls"),
        "GITHUB_OUTPUT": str(folder / "output"),
    }
    command = [word.format(folder / "step.sh") for word in _gate_step()["shell"].split()]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, check=False)
    assert not (work / "ran").exists(), f"code of an input ran: {done.stderr!r}"
    strangers = {path.name for path in work.iterdir()} - {
        "trap.sh",
        "json.py",
        "tracekit.py",
        "pip.py",
    }
    assert all(name.startswith("tracekit-gate") for name in strangers), strangers
    call = (folder / "calls").read_bytes().split(b"\0")[:-1]
    assert call[:4] == [b"-I", b"-m", b"tracekit", b"gate"], call
    options = call[4 : call.index(b"--")]
    known = (b"--baseline=", b"--require=", b"--inconclusive=", b"--name=", b"-o", b"tracekit-gate")
    assert all(word.startswith(known) for word in options), options
    candidates = os.fsencode(inputs["CANDIDATE"]).split()
    assert call[len(call) - len(candidates) :] == candidates, call
    lines = (folder / "output").read_text(encoding="utf-8").splitlines()
    keys = [line.partition("=")[0] for line in lines]
    assert keys == ["verdict", "code", "folder", "artifact"], lines
