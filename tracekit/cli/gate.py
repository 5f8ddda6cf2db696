"""The command ``tracekit gate``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from tracekit._util.text import counted
from tracekit.errors import OptionError, TracekitError
from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.command_options import flag, value
from tracekit.report.terminal.console import discard_stdout, print_line, print_note, shows_result

if TYPE_CHECKING:
    from tracekit.diffs import Config, GateResult, Side
    from tracekit.documents.gate import GateDocument


class GateCommand(TyperCommand):
    """A command whose ``--baseline`` takes every word up to the next option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat ``--baseline`` before each of its words, which typer alone cannot parse."""
        options_with_value: set[str] = set()
        for param in self.params:
            if not getattr(param, "is_flag", False):
                options_with_value.update(name for name in param.opts if name.startswith("-"))
        return super().parse_args(ctx, repeat_baseline(args, options_with_value))


def repeat_baseline(args: Sequence[str], options_with_value: set[str]) -> list[str]:
    """Insert ``--baseline`` before every further word of a ``--baseline`` option.

    Only after a candidate was named: in ``gate --baseline base.json new/`` the second word is the
    candidate.

    >>> repeat_baseline(["new", "--baseline", "a", "b", "--json"], {"--baseline"})
    ['new', '--baseline', 'a', '--baseline', 'b', '--json']
    >>> repeat_baseline(["--baseline", "a", "new"], {"--baseline"})
    ['--baseline', 'a', 'new']
    """
    repeated: list[str] = []
    candidate_seen = in_baseline = value_expected = False
    for word in args:
        if value_expected:
            repeated.append(word)
            value_expected = False
        elif word.startswith("-") and len(word) > 1:
            repeated.append(word)
            value_expected = word in options_with_value
            in_baseline = word == "--baseline" and candidate_seen
        elif in_baseline:
            repeated += ["--baseline", word]
        else:
            repeated.append(word)
            candidate_seen = True
    return repeated


def run(
    candidates: Annotated[
        list[str] | None,
        typer.Argument(
            help="Runs to judge: traces, stores, folders or saved analyses.", metavar="CANDIDATE"
        ),
    ] = None,
    *,
    baseline: Annotated[
        list[str] | None,
        value("Runs to compare with, or a baseline file; several may follow.", "BASE"),
    ] = None,
    require: Annotated[
        list[str] | None,
        value(
            "'bubble_fraction < 0.12', 'step_ms < +3%', 'overlap.ep_dispatch > -0.02'; may be repeated.",
            "EXPR",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        options.output("Write .json, .xml (JUnit), .md, .txt (metrics) or .html; may be repeated."),
    ] = None,
    history: Annotated[
        Path | None,
        value("Add the candidates to this page (.html) and write their reports beside it.", "FILE"),
    ] = None,
    name: Annotated[
        str | None, value("Name of this gate in its reports, where a project has several.", "NAME")
    ] = None,
    role: options.Role = None,
    json: options.Json = False,
    inconclusive: Annotated[
        Literal["pass", "fail"] | None,
        typer.Option(help="Exit with 0 (pass) or 1 (fail) instead of 3 when it cannot be decided."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        value("Compare even if this differs: world_size, schedule, shapes, gpu or damage.", "WHAT"),
    ] = None,
    config: Annotated[
        Path | None,
        value("Settings file; by default tracekit.toml or pyproject.toml above here.", "FILE"),
    ] = None,
    update_baseline: Annotated[
        bool, flag("--update-baseline", "Write the candidates into the baseline file instead.")
    ] = False,
    calibrate: Annotated[
        bool, flag("--calibrate", "Measure the noise between these runs and write it with them.")
    ] = False,
    accept_noise: Annotated[
        bool,
        flag("--accept-noise", "Write a calibration although it makes limits void."),
    ] = False,
    metrics: Annotated[bool, flag("--metrics", "List every metric that can be required.")] = False,
) -> None:
    """Judge runs against a baseline.

    Exit code 0 pass, 1 regressed, 2 unusable input, 3 inconclusive.
    """
    if metrics:
        _print_metrics()
        return
    from tracekit.report.ci.write import GATE
    from tracekit.report.html.history import check_history
    from tracekit.report.write import check_extension

    outputs = output or []
    for path in outputs:
        check_extension(path, (*GATE, ".html"))
    pages = [path for path in outputs if path.suffix.lower() == ".html"]
    files = [path for path in outputs if path not in pages]
    if history is not None:
        check_history(history)
    settings = _settings(config, require=require, inconclusive=inconclusive, allow=allow, name=name)
    bases = baseline or list(settings.baseline)
    if update_baseline or calibrate:
        _write_baseline(
            candidates or [],
            bases,
            calibrate=calibrate,
            accept_noise=accept_noise,
            settings=settings,
        )
        return
    try:
        verdict = _judge(
            candidates or [],
            bases,
            settings=settings,
            role=role,
            pages=pages,
            history=history,
        )
        result = verdict.to_document()
    except TracekitError as error:
        _write_result(_error_result(error, name=settings.name), files, json=json, quiet=True)
        raise
    try:
        _write_result(result, files, json=json)
    except BrokenPipeError:
        discard_stdout()  # the verdict stands, whoever reads it
    raise typer.Exit(result.exit_code)


def _settings(
    file: Path | None,
    *,
    require: list[str] | None,
    inconclusive: Literal["pass", "fail"] | None,
    allow: list[str] | None,
    name: str | None,
) -> "Config":
    """Return the settings of the project, with what the command line says instead."""
    from msgspec.structs import replace

    from tracekit.diffs import load_config

    settings = load_config(file)
    if require:
        settings = replace(settings, require=tuple(require))
    if inconclusive is not None:
        settings = replace(settings, inconclusive=inconclusive)
    if allow:
        settings = replace(settings, allow=tuple(allow))
    if name is not None:
        settings = replace(settings, name=name)
    return settings


def _judge(
    candidates: list[str],
    bases: list[str],
    *,
    settings: "Config",
    role: str | None,
    pages: Sequence[Path],
    history: Path | None,
) -> "GateResult":
    """Return the verdict; write the pages and the history, which need the analyses of the runs."""
    from tracekit.diffs import gate, read_side
    from tracekit.diffs.history import add_runs_to_history

    if not pages and history is None:
        return gate(candidates, bases or None, config=settings, role=role)
    candidate = read_side(candidates, what="candidate", keep=True)
    base = read_side(bases, what="baseline", keep=bool(pages)) if bases else None
    verdict = gate(candidate, base, config=settings, role=role)
    if history is not None:
        add_runs_to_history(history, candidate.runs, verdict=verdict.verdict)
    for page in pages:
        if _write_page(page, candidate, base, role=role):
            print_note(f"wrote {page}")
    return verdict


def _write_page(
    page: Path, candidate: "Side", baseline: "Side | None", *, role: str | None
) -> bool:
    """Write the page behind a verdict: the diff, or without a baseline the candidate's analysis.

    Both sides keep their analyses (``read_side(keep=True)``). Returns whether there was something
    to show: figures of a saved analysis without a baseline are not.
    """
    from tracekit.diffs import diff
    from tracekit.results.write import write

    if baseline is not None and baseline.runs:
        diff(baseline, candidate, role=role).save(page)
        return True
    analysis = candidate.runs[0].analysis
    if analysis is None:
        return False
    write(analysis, page)
    return True


def _write_result(
    result: "GateDocument", paths: Sequence[Path], *, json: bool, quiet: bool = False
) -> None:
    """Write the result to the files and print it; *quiet* prints no text."""
    from tracekit.report.ci.write import github, to_json, write_gate
    from tracekit.report.terminal.changes import show_gate
    from tracekit.report.terminal.screen import Screen

    for path in paths:
        write_gate(result, path)
        print_note(f"wrote {path}")
    if json:
        typer.echo(to_json(result), nl=False)
    elif not quiet and shows_result(paths):
        show_gate(result, Screen(highlight=True))
    for command in github(result):  # text in it is escaped
        typer.echo(command, err=json)


def _error_result(error: TracekitError, *, name: str) -> "GateDocument":
    """Return the result of a gate whose input cannot be used."""
    from msgspec import UNSET

    from tracekit._version import __version__
    from tracekit.documents.gate import GATE_FORMAT, GateDocument

    return GateDocument(
        tracekit=__version__,
        format=GATE_FORMAT,
        name=name or UNSET,
        verdict="error",
        exit_code=error.exit_code,
        error=str(error),
        obstacles=[],
        checks=[],
        waivers=[],
    )


def _write_baseline(
    candidates: Sequence[str],
    bases: Sequence[str],
    *,
    calibrate: bool,
    accept_noise: bool,
    settings: "Config",
) -> None:
    from tracekit.diffs import read_side
    from tracekit.diffs.baseline import write_baseline

    if len(bases) != 1 or not bases[0].endswith(".json"):
        raise OptionError(
            "which baseline file should be written?", hint="give --baseline FILE.json"
        )
    side = read_side(candidates, what="candidate")
    noise = write_baseline(
        bases[0],
        side.runs,
        calibrated=calibrate,
        accept_noise=accept_noise,
        settings=settings,
    )
    steps = sum(run.recorded_or_measured_steps for run in side.runs)
    contents = f"{counted(len(side.runs), 'run')}, {counted(steps, 'step')}, noise of {counted(len(noise), 'metric')}"
    print_line(f"wrote {bases[0]}: {contents}")
    if calibrate:
        for metric in sorted(noise.keys() & {"step_ms", "bubble_fraction"}):
            spread, centre = noise[metric]
            share = f" ({100 * spread.deviation / centre:.2f} %)" if centre else ""
            floor = spread.floor((1, 1))
            print_line(
                f"  {metric}: runs differ by {spread.deviation:.4g}{share}; floor of a pair of runs {floor:.4g}"
            )


def _print_metrics() -> None:
    from tracekit.diffs.metrics import FAMILIES

    for family in FAMILIES:
        some_keys = ",".join(family.keys[:4]) + (",…" if len(family.keys) > 4 else "")
        keys = f".{{{some_keys}}}" if family.keys else ""
        better = {"down": "lower is better", "up": "higher is better", "none": "no direction"}[
            family.better
        ]
        default = ", default" if family.default else ""
        print_line(f"{family.name}{keys}  [{family.unit}, {better}{default}]  {family.about}")
