"""``tracekit gate``: a regression stops, noise does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit._util.text import counted
from tracekit.cli._base import Command, hush, say
from tracekit.cli._options import Nsys
from tracekit.errors import OptionError, TracekitError

if TYPE_CHECKING:
    from tracekit.gates import Config


class Policy(StrEnum):
    """What to do when nothing regressed but something could not be decided."""

    PASS = "pass"
    FAIL = "fail"


class GateCommand(Command):
    """A command whose ``--baseline`` takes every word up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat ``--baseline`` before each of its words."""
        valued = {o for p in self.params for o in p.opts if o.startswith("-") and not getattr(p, "is_flag", False)}
        return super().parse_args(ctx, spread(args, valued))


KIND = GateCommand


def spread(args: Sequence[str], valued: set[str]) -> list[str]:
    """Give each word after ``--baseline`` a ``--baseline`` of its own.

    Only once a candidate was named: in ``gate --baseline base.json new/`` the second word is the candidate.

    >>> spread(["new", "--baseline", "a", "b", "--json"], {"--baseline"})
    ['new', '--baseline', 'a', '--baseline', 'b', '--json']
    >>> spread(["--baseline", "a", "new"], {"--baseline"})
    ['--baseline', 'a', 'new']
    """
    result: list[str] = []
    candidates, taking, expects = False, False, False
    for word in args:
        option = word.startswith("-") and len(word) > 1
        if expects:
            result.append(word)
            expects = False
        elif option:
            result.append(word)
            expects, taking = word in valued, word == "--baseline" and candidates
        elif taking:
            result += ["--baseline", word]
        else:
            result.append(word)
            candidates = True
    return result


def run(
    candidates: Annotated[
        list[str] | None,
        typer.Argument(help="Runs to judge: traces, stores, folders or saved analyses.", metavar="CANDIDATE"),
    ] = None,
    *,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="Runs to compare with, or a baseline file; several may follow.", metavar="BASE"),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            help="'bubble_fraction < 0.12', 'step_ms < +3%', 'overlap.ep_dispatch > -0.02'; may be repeated.",
            metavar="EXPR",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write .json, .xml (JUnit) or .md; may be repeated.", metavar="FILE"),
    ] = None,
    nsys: Nsys = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    inconclusive: Annotated[
        Policy | None, typer.Option(help="Exit with 0 (pass) or 1 (fail) instead of 3 when it cannot be decided.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Compare even if this differs: world_size, schedule, shapes or gpu.", metavar="WHAT"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file; by default tracekit.toml or pyproject.toml above here.", metavar="FILE"),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the candidates into the baseline file instead.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure the noise between these runs and write it with them.")
    ] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="List every metric that can be required.")] = False,
) -> None:
    """Judge runs against a baseline; exit code 0 pass, 1 regressed, 2 unusable input, 3 inconclusive."""
    if metrics:
        _list_metrics()
        return
    from msgspec.structs import replace

    from tracekit.gates import load_config
    from tracekit.report.ci import write as gate_write

    paths = output or []
    gate_write.check_outputs(paths, gate_write.GATE)
    settings = load_config(config)
    if inconclusive is not None:
        settings = replace(settings, inconclusive=inconclusive.value)
    if allow:
        settings = replace(settings, allow=tuple(allow))
    bases = baseline or list(settings.baseline)
    if update_baseline or calibrate:
        _write_baseline(candidates or [], bases, calibrate=calibrate)
        return
    try:
        result = _judge(candidates or [], bases, require or [], settings)
    except TracekitError as error:
        _deliver(_unusable(error), paths, json=json, quiet=True)
        raise
    try:
        _deliver(result, paths, json=json)
    except BrokenPipeError:
        hush()  # its reader has left; the verdict stands
    raise typer.Exit(result["exit_code"])


def _judge(candidates: Sequence[str], bases: Sequence[str], require: Sequence[str], settings: Config) -> dict[str, Any]:
    from tracekit.gates import gate as judge

    return judge(candidates, bases or None, require=require, config=settings).to_dict()


def _deliver(result: Mapping[str, Any], paths: Sequence[Path], *, json: bool, quiet: bool = False) -> None:
    from tracekit.report.ci import write as gate_write
    from tracekit.report.terminal import gate as gate_terminal
    from tracekit.report.terminal.screen import Screen

    gate_write.write_all(result, paths, gate_write.GATE)
    for path in paths:
        say(f"wrote {path}", err=True)
    if json:
        typer.echo(gate_write.to_json(result), nl=False)
    elif not quiet:
        gate_terminal.show(result, Screen(highlight=True))
    for line in gate_write.github(result):
        say(line, err=json)


def _unusable(error: TracekitError) -> dict[str, Any]:
    from tracekit._version import __version__

    return {
        "tracekit": __version__,
        "format": "tracekit.gate/1",
        "verdict": "error",
        "exit_code": error.exit_code,
        "error": str(error),
        "obstacles": [],
        "checks": [],
        "waivers": [],
    }


def _write_baseline(candidates: Sequence[str], bases: Sequence[str], *, calibrate: bool) -> None:
    from tracekit.diffs import read_side
    from tracekit.gates.baseline import update

    if len(bases) != 1 or not bases[0].endswith(".json"):
        raise OptionError("which baseline file should be written?", hint="give --baseline FILE.json")
    side = read_side(candidates, what="candidate")
    noise = update(bases[0], side.runs, calibrated=calibrate)
    steps = sum(run.steps for run in side.runs)
    contents = ", ".join(
        (counted(len(side.runs), "run"), counted(steps, "step"), f"noise of {counted(len(noise), 'metric')}")
    )
    say(f"wrote {bases[0]}: {contents}")
    if calibrate:
        for name, one, centre in sorted((n, *v) for n, v in noise.items() if n in ("step_ms", "bubble_fraction")):
            share = f" ({100 * one.deviation / centre:.2f} %)" if centre else ""
            say(f"  {name}: runs differ by {one.deviation:.4g}{share}; floor of a pair of runs {one.floor((1, 1)):.4g}")


def _list_metrics() -> None:
    from tracekit.diffs.metrics import FAMILIES

    for family in FAMILIES:
        keys = f".{{{','.join(family.keys[:4])}{',…' if len(family.keys) > 4 else ''}}}" if family.keys else ""
        better = {"down": "lower is better", "up": "higher is better", "none": "no direction"}[family.better]
        say(f"{family.name}{keys}  [{family.unit}, {better}{', default' if family.default else ''}]  {family.about}")
