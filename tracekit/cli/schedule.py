"""The command ``tracekit schedule``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.errors import OptionError
from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.command_options import flag, value
from tracekit.report.terminal.console import print_note

if TYPE_CHECKING:
    from tracekit.pipeline.schedules import BlockTimes, Schedule, Simulation, Times
    from tracekit.pipeline.schedules.two_buffers import WeightReload


def run(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A schedule's name (--list), or a file of orders, one line per rank.",
            metavar="NAME",
        ),
    ] = None,
    *,
    pp: Annotated[int | None, value("Pipeline ranks.", "P")] = None,
    microbatches: Annotated[int | None, value("Micro-batches per step.", "M")] = None,
    virtual: Annotated[int | None, value("Model chunks per rank.", "V")] = None,
    group: Annotated[int | None, value("Micro-batches per group (interleaved).", "G")] = None,
    time: Annotated[
        str,
        value("Durations: F=1,I=1,W=1,FB=3,P2P=0; B is I+W and FB is F+B unless given.", "TIMES"),
    ] = "",
    lanes: Annotated[
        bool,
        flag(
            "--lanes", "Time and draw the tasks inside each block: compute, communication, copies."
        ),
    ] = False,
    block_time: Annotated[
        str, value("With --lanes: attention=2,mlp=2,dispatch=1.5,…", "TIMES")
    ] = "",
    ranks: Annotated[int | None, value("Number of devices (weight-reload only).", "N")] = None,
    rounds: Annotated[int | None, value("Number of rounds (weight-reload only).", "R")] = None,
    output: Annotated[
        list[Path] | None,
        options.output(
            "Write .svg .png .pdf .html .json .txt, or .trace.json for Perfetto; may be repeated."
        ),
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print the schedule as JSON.")] = False,
    list_all: Annotated[bool, flag("--list", "List the names of all schedules.")] = False,
) -> None:
    """Make an ideal schedule by name: its order, times, time outside cells, memory and picture."""
    from tracekit.report.schedule.write import SCHEDULE_EXTENSIONS, write_schedule
    from tracekit.report.write import check_extension

    if list_all:
        _print_list(as_json)
        return
    if name is None:
        raise OptionError("no schedule named", hint="tracekit schedule NAME; --list names them all")
    for path in output or ():
        check_extension(path, SCHEDULE_EXTENSIONS)
    from tracekit.pipeline.schedules import BlockTimes, describe

    blocks = BlockTimes.parse(block_time) if lanes else None
    if block_time and not lanes:
        raise OptionError("--block-time needs --lanes")
    if not _is_file(name) and not describe(name).pipeline:
        _refuse_options(name, pp=pp, microbatches=microbatches, virtual=virtual, group=group)
        simulated: Simulation | WeightReload = _weight_reload(ranks, rounds, time)
    else:
        _refuse_options(name, ranks=ranks, rounds=rounds)
        simulated = _pipeline(name, (pp, microbatches, virtual, group), time, blocks)
    for path in output or ():
        write_schedule(simulated, path, block_times=blocks)
        print_note(f"Wrote {path}")
    if as_json:
        from tracekit.documents.coding import encode

        typer.echo(encode(simulated.to_document(), indent=None))
    elif not output:
        _print_schedule(simulated)


def _pipeline(
    name: str,
    sizes: tuple[int | None, int | None, int | None, int | None],
    time: str,
    blocks: BlockTimes | None,
) -> Simulation:
    from tracekit.pipeline.schedules import Times, block_times, generate, simulate

    pp, microbatches, virtual, group = sizes
    if blocks is not None and time:
        raise OptionError(
            "--time and --lanes cannot be combined",
            hint="with --lanes, times come from --block-time",
        )
    times: Times = Times.parse(time) if blocks is None else block_times(blocks)
    if _is_file(name):
        _refuse_options(
            "a file of orders", pp=pp, microbatches=microbatches, virtual=virtual, group=group
        )
        from tracekit.pipeline.schedules import read_orders

        schedule: Schedule = read_orders(name)
    else:
        if pp is None or microbatches is None:
            raise OptionError(
                f"{name} needs --pp and --microbatches",
                hint=f"as in: tracekit schedule {name} --pp 4 --microbatches 8",
            )
        schedule = generate(
            name, pp=pp, microbatches=microbatches, virtual=virtual, group=group, times=times
        )
    return simulate(schedule, times)


def _weight_reload(ranks: int | None, rounds: int | None, time: str) -> WeightReload:
    from tracekit.pipeline.schedules.two_buffers import ReloadTimes, weight_reload

    if ranks is None or rounds is None:
        raise OptionError(
            "weight-reload needs --ranks and --rounds",
            hint="as in: tracekit schedule weight-reload --ranks 4 --rounds 2",
        )
    return weight_reload(ranks, rounds, ReloadTimes.parse(time))


def _is_file(name: str) -> bool:
    return "/" in name or "." in name or Path(name).is_file()


def _refuse_options(subject: str, **given_options: int | None) -> None:
    """Raise if any of the options that *subject* does not take is given."""
    refused = [f"--{key}" for key, value in given_options.items() if value is not None]
    if refused:
        raise OptionError(f"{subject} takes no {' and no '.join(refused)}", hint="leave it out")


def _print_list(as_json: bool) -> None:
    from tracekit.pipeline.schedules import describe, names

    entries = [describe(name) for name in names()]
    if as_json:
        import msgspec

        from tracekit.documents.coding import encode
        from tracekit.documents.schedule import ScheduleEntry

        typer.echo(
            encode(msgspec.convert(entries, list[ScheduleEntry], from_attributes=True), indent=None)
        )
        return
    from tracekit.report.schedule.write import list_text
    from tracekit.report.terminal.screen import Screen

    console = Screen(highlight=False)
    console.print(list_text(entries, width=console.width))


def _print_schedule(simulated: Simulation | WeightReload) -> None:
    from tracekit.report.schedule.write import schedule_text
    from tracekit.report.terminal.screen import Screen

    console = Screen()
    console.print(
        schedule_text(simulated, width=console.width, letters=console.color_system is None),
        soft_wrap=True,
    )
