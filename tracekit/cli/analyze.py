"""The command ``tracekit analyze``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from tracekit.errors import InputError, OptionError, TracekitError
from tracekit.parsers.rank_numbers import (
    MAX_DIGITS,
    MAX_SHOWN_OPTION_CHARS,
    chosen_ranks,
    unknown_rank_error,
)
from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.command_options import flag, value
from tracekit.report.terminal.console import (
    print_left_out,
    print_note,
    print_notices,
    print_text,
    shows_result,
)

if TYPE_CHECKING:
    from tracekit.results import Analysis
    from tracekit.store.sources import OneRole
    from tracekit.store.sources import Paths as RunPaths

OPTION_PANELS = {
    "Most used": ("output", "full", "explain", "what_if", "schedule"),
    "What to read": (
        "steps", "ranks", "roles", "file_rank", "rules", "capture", "gpu", "gpu_rates", "strict",
        "workers",
    ),
    "What to compare with": ("layout", "pipeline"),
    "What to ask": ("change", "list_changes", "by"),
    "What to print": ("show", "brief", "json", "plot"),
}  # fmt: skip
"""Options in the order of the help, by heading; what is in none comes last."""
ALL_SECTIONS = "full"
"""What ``--show`` calls all sections."""


class AnalyzeCommand(TyperCommand):
    """A command whose help lists its options by what they are for."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the argument, then a panel for each heading of ``OPTION_PANELS``."""
        records = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                records[param.name] = record
        panels = {"Arguments": ("paths",), **OPTION_PANELS}
        in_panel = {name for names in panels.values() for name in names}
        panels["Others"] = tuple(name for name in records if name not in in_panel)
        for heading, names in panels.items():
            with formatter.section(heading):
                formatter.write_dl([records[name] for name in names])


def _print_changes(wanted: bool) -> None:
    """Print the forms of changes, and end."""
    if wanted:
        from tracekit.graph.change import CHANGE_FORMS

        width = max(map(len, CHANGE_FORMS))
        for form, meaning in CHANGE_FORMS.items():
            print_text(f"{form:{width}}  {meaning}")
        raise typer.Exit


def run(
    paths: options.Paths = None,
    *,
    output: Annotated[
        list[Path] | None,
        options.output(
            "Write the result: .html .json .md .parquet .csv .png .svg .pdf; may be repeated."
        ),
    ] = None,
    plot: Annotated[
        str | None,
        value(
            "What a picture shows: schedule, measured, ideal, budget, overlap, gap, lanes, timeline, curve, memory or "
            "flame.",
            "NAME",
        ),
    ] = None,
    json: options.Json = False,
    schedule: Annotated[
        str, value("Ideal to compare with: auto, a name, an order file or none.", "NAME")
    ] = "auto",
    steps: Annotated[
        str | None, value("Only these steps: 3, 2:4 (2 and 3), 1:, :-1 or 2,5.", "STEPS")
    ] = None,
    ranks: options.Ranks = None,
    roles: options.Roles = None,
    file_rank: options.FileRank = None,
    rules: options.Rules = None,
    capture: Annotated[
        Path | None,
        value(
            "Trace of the capture of the CUDA or HIP graphs that are replayed, or a folder with one per rank.",
            "PATH",
        ),
    ] = None,
    layout: Annotated[
        str | None,
        value("Override how ranks are arranged: pp=4,ep=2; node=8 for ranks per machine.", "SIZES"),
    ] = None,
    what_if: Annotated[
        bool,
        flag(
            "--what-if",
            "List what would help: the changes that save most, and other schedules. --change asks for one of your own.",
        ),
    ] = False,
    change: Annotated[
        list[str] | None,
        value(
            "Predict one such change: 'dp_comm x0.5', 'links x2', 'rank 2 like others', 'no host delay', "
            "'hide dp_comm', 'balance', 'schedule zb-v', 'microbatches 16'; may be repeated.",
            "TEXT",
        ),
    ] = None,
    list_changes: Annotated[
        bool,
        typer.Option(
            "--list-changes",
            help="List the forms of changes.",
            callback=_print_changes,
            is_eager=True,
        ),
    ] = False,
    pipeline: Annotated[
        int | None, value("Show this pipeline, counted from 0; by default the slowest.", "N")
    ] = None,
    gpu: Annotated[
        str | None, value("Name of the GPU, for traces that do not name it: H100, MI300X …", "NAME")
    ] = None,
    gpu_rates: Annotated[
        Path | None,
        value("Price savings by this table of what the GPU reaches (benchmarks/atlas.py).", "FILE"),
    ] = None,
    by: Annotated[
        str | None, value("Show the step in rows: by layer, module, annotation or shape.", "ROWS")
    ] = None,
    explain: Annotated[
        str | None,
        value(
            "Explain a finding by its number, or why an event got its label: a name, part of one, or a label.",
            "WHAT",
        ),
    ] = None,
    show: Annotated[
        list[str] | None,
        value(
            "Print more: a section (budget, critical-path, definitions, memory, rates …; a wrong name lists "
            "all) or full; may be repeated.",
            "SECTION",
        ),
    ] = None,
    brief: Annotated[
        bool, flag("--brief", "Print only the beginning: the step and the first finding.")
    ] = False,
    full: Annotated[
        bool, flag("--full", "Print every table and all warnings; short for --show full.")
    ] = False,
    workers: options.Workers = None,
    strict: options.Strict = False,
) -> None:
    """Show where the step's time went on every rank, what was hidden, who waited, and how far it is from its ideal."""
    outputs = output or []
    sections, show_all = chosen_sections(show or ())
    full = full or show_all
    _check_explain(explain, json=json, outputs=outputs)
    finding_number = int(explain) if explain is not None and explain.isdecimal() else None
    if paths and len(paths) == 1 and not roles and _saved_format(paths[0]) is not None:
        needing_events: dict[str, object] = {
            "--steps": steps, "--ranks": ranks, "--file-rank": file_rank, "--rules": rules, "--capture": capture,
            "--schedule": schedule != "auto", "--layout": layout, "--what-if": what_if, "--change": change,
            "--pipeline": pipeline, "--gpu": gpu, "--gpu-rates": gpu_rates, "--by": by, "--plot": plot,
            "--explain LABEL": explain is not None and finding_number is None,
        }  # fmt: skip
        analysis = _read_saved(paths[0], needing_events)
        print_notices(notice for notice in analysis.notices if notice.code == "saved-analysis")
        _check_outputs(outputs, plot)
        _show(
            analysis,
            finding_number,
            outputs,
            plot=plot,
            json=json,
            brief=brief,
            full=full,
            show=sections,
        )
        return
    if explain is not None and finding_number is None:
        _explain_label(
            options.role_paths(paths, roles, "analyze"),
            explain,
            ranks=chosen_ranks(ranks),
            rank=file_rank,
            rules=rules,
            capture=capture,
            all_rules=full,
        )
        return
    if paths and not roles and _has_recordings_alone(paths):
        from tracekit.late import command as late

        late.run(paths, output=output, ranks=ranks, workers=workers, json=json)
        return
    _check_outputs(outputs, plot)
    from tracekit.run.analyze import analyze

    has_page = any(_is_page(path) for path in outputs)
    analysis = analyze(
        options.role_paths(paths, roles, "analyze"),
        steps=steps,
        ranks=ranks,
        file_rank=file_rank,
        rules=rules,
        capture=capture,
        schedule=schedule,
        layout=layout,
        what_if=what_if or plot == "curve",  # the curve is one of the predictions
        changes=change or (),
        timeline=has_page,
        # Source lines of the places; else only if a finding asks for them.
        stacks=has_page,
        by=by,
        pipeline=pipeline,
        gpu=gpu,
        gpu_rates=gpu_rates,
        workers=workers,
        on_damage="error" if strict else "warn",
    )
    print_left_out(analysis.notices)
    _show(
        analysis,
        finding_number,
        outputs,
        plot=plot,
        json=json,
        brief=brief,
        full=full,
        show=(*sections, "changes") if what_if or change else sections,
    )


def chosen_sections(show: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the sections that ``--show`` names, and whether it asks for all.

    >>> chosen_sections(["budget,rates", "full"])
    (('budget', 'rates'), True)
    """
    if not show:
        return (), False
    from tracekit.report.section import sections_to_show
    from tracekit.rooms import all_sections

    available = sections_to_show(all_sections())
    names = [name.strip() for names in show for name in names.split(",")]
    for name in names:
        if name not in (*available, ALL_SECTIONS):
            raise OptionError(
                f"--show {name[:MAX_SHOWN_OPTION_CHARS]}: there is no such section",
                hint=f"there are {', '.join([*available, ALL_SECTIONS])}",
            )
    return tuple(
        dict.fromkeys(name for name in names if name != ALL_SECTIONS)
    ), ALL_SECTIONS in names


def _check_explain(explain: str | None, *, json: bool, outputs: Sequence[Path]) -> None:
    """Raise if an explanation is to be written anywhere but to the terminal."""
    if explain is None:
        return
    if json:
        raise OptionError("--explain prints text", hint="leave --json out")
    if outputs:
        raise OptionError("--explain prints text", hint="leave -o out")
    if explain.isdecimal() and len(explain) > MAX_DIGITS:
        shown = explain[:MAX_DIGITS]
        raise OptionError(f"--explain {shown}…: there is no such finding", hint="give its number")


def _saved_format(path: str) -> str | None:
    """Return the format of a file that tracekit wrote as JSON; None for all else."""
    from tracekit.documents.coding import saved_format

    return saved_format(path)


def _read_saved(path: str, needing_events: Mapping[str, object]) -> Analysis:
    """Return a saved analysis.

    Raises:
        InputError: The file holds another result, or its analysis is damaged.
        OptionError: An option was given that needs the events, which the file does not hold.
    """
    from tracekit.results import read_analysis

    saved_as = _saved_format(path) or ""
    if not saved_as.startswith("tracekit.analysis/"):
        raise InputError(
            f"holds {saved_as}, not an analysis",
            path=path,
            hint="name a trace, a store, or what analyze -o FILE.json wrote",
        )
    refused_options = [option for option, value in needing_events.items() if value]
    if refused_options:
        raise OptionError(
            f"{refused_options[0]} needs the events, and {path} is a saved analysis",
            hint="name the traces or a store",
        )
    return read_analysis(path)


def _show(
    analysis: Analysis,
    finding_number: int | None,
    outputs: Sequence[Path],
    *,
    plot: str | None,
    json: bool,
    brief: bool,
    full: bool,
    show: Sequence[str],
) -> None:
    """Write an analysis to *outputs*, and print it as JSON or as tables; or explain one of its findings.

    *show* are the sections that were asked for.
    """
    if finding_number is not None:
        from tracekit.report.terminal.explain import explain_finding

        print_text(explain_finding(analysis, finding_number))
        return
    if outputs:
        from tracekit.results.write import write

        for path in outputs:
            write(analysis, path, plot=plot, show=show)
            print_note(f"wrote {path}")
    if json:
        from tracekit.report.write import render_json

        sys.stdout.write(render_json(analysis, show))
    elif shows_result(outputs):
        from tracekit.report.terminal.analysis import render
        from tracekit.report.terminal.screen import Screen

        render(
            analysis,
            Screen(),
            brief=brief,
            full=full,
            page_written=any(_is_page(path) for path in outputs),
            show=show,
        )


def _has_recordings_alone(paths: list[str]) -> bool:
    """Return whether there are only dumps and logs.

    Paths without anything are left to the analysis to report.
    """
    from tracekit.late.find_recordings import has_recordings_alone

    try:
        return has_recordings_alone(paths)
    except TracekitError:
        return False


def _is_page(path: Path) -> bool:
    return path.suffix.lower() == ".html"


def _check_outputs(paths: Sequence[Path], plot: str | None) -> None:
    """Raise if an output cannot be written, before any work is done."""
    if not paths and plot is None:
        return
    from tracekit.results.write import PICTURES, check_output

    for path in paths:
        check_output(path, plot=plot)
    if plot is not None and not any(path.suffix.lower() in PICTURES for path in paths):
        raise OptionError(
            f"--plot {plot} needs a picture to draw", hint=f"add -o {plot}.svg (or .png, .pdf)"
        )


def _explain_label(
    paths: RunPaths | OneRole,
    selector: str,
    *,
    ranks: tuple[int, ...] | None,
    rank: int | None,
    rules: Path | None,
    capture: Path | None,
    all_rules: bool,
) -> None:
    """Print why events got their labels, for the first of *ranks*."""
    from tracekit.report.terminal.explain import explain_text
    from tracekit.run.driver import find_sources
    from tracekit.store.sources import attach_named_capture, read_ref

    sources = find_sources(paths, ranks=ranks, rank=rank).refs
    for ref in attach_named_capture(sources, capture):
        parts = read_ref(ref, ranks=ranks)
        if parts:
            print_text(explain_text(parts[0], selector, rules=rules, all_rules=all_rules))
            return
    raise unknown_rank_error(ranks or (), ())
