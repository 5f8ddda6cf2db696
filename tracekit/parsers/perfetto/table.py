"""Events table of a Perfetto trace: names, categories, times and threads of the scanner's rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops.event_columns import EventColumn
from tracekit._loops.json_scanner import NULL
from tracekit._loops.packet_scanner import EventType, PacketColumn, Trait
from tracekit._util.arrays import Ints
from tracekit.parsers.kineto.texts import DAMAGE
from tracekit.parsers.kineto.vocabulary import MEMORY_COLUMNS
from tracekit.parsers.kineto.worker import ColumnPart, ScannedPart, TextChunk
from tracekit.parsers.perfetto.messages import signed
from tracekit.parsers.perfetto.packets import Packets
from tracekit.parsers.perfetto.slices import NO_END, match_ends
from tracekit.parsers.perfetto.state import BOOT_CLOCK, Names, TraceState
from tracekit.parsers.perfetto.vocabulary import PERFETTO_MEMORY_KINDS, STAGE_CATEGORIES
from tracekit.schema import LATEST_NS

ALLOCATION = b"[memory]"
"""Name of the allocator's events."""
MODULE_CALL = b"nn.Module: "
"""Start of the names of Python frames that are always read: calls of modules."""
PYTHON_CATEGORY = b"python_function"
NO_END_KEY = "slices without an end"
NO_CLOCK_KEY = "events on a clock that the file does not relate to others"
UNKNOWN_NAME_KEY = "events whose name is not in the file"
INSTANT_KEY = "i"

Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class ResolvedRows:
    """Rows in the columns of PyTorch's JSON traces, from which ``kineto.table`` builds tables."""

    part: ScannedPart
    texts: list[bytes]
    skipped: dict[str, int] = field(default_factory=dict)
    python_frames: int = 0


def decode_text(raw: bytes) -> str:
    """Return a text.

    Where its bytes are not UTF-8 they are replaced, and ``DAMAGE`` is appended.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace") + DAMAGE


def values_by_key(values: Mapping[str, int], keys: Ints) -> Ints:
    """Return the value of each number of *keys*, ``NULL`` where there is none.

    The keys of *values* are numbers as text, as ``seeded_key`` writes them.
    """
    numbered = ((int(key), value) for key, value in values.items())
    items = sorted((number, value) for number, value in numbered if -(2**63) <= number < 2**63)
    if not items:
        return np.full(len(keys), NULL, np.int64)
    sorted_keys = np.array([key for key, _ in items], np.int64)
    sorted_values = np.array([signed(value) for _, value in items], np.int64)
    # Position of the key, or of the next larger one.
    position = np.minimum(np.searchsorted(sorted_keys, keys), len(items) - 1)
    return np.where(sorted_keys[position] == keys, sorted_values[position], NULL)


class RowResolver:
    """Resolution of what the rows of one trace refer to by number."""

    def __init__(self, packets: Packets, state: TraceState) -> None:
        self._packets = packets
        self._state = state
        self._texts = list(packets.texts)
        self._codes: dict[bytes, int] = {}
        self._packet = packets.column(PacketColumn.PACKET)
        self._writer = packets.column(PacketColumn.WRITER)
        self._type = packets.column(PacketColumn.TYPE)
        self._is_stage: Bools = self._type == EventType.STAGE
        self._period = self._periods()

    def resolve(self, *, stacks: bool) -> ResolvedRows:
        """Return the rows; of Python frames only the calls of modules, or with *stacks* all."""
        track = self._tracks(self._packets.column(PacketColumn.TRACK), self._writer)
        start, has_clock = self._times(
            self._packets.column(EventColumn.TS), self._packets.column(PacketColumn.CLOCK)
        )
        name = self._names()
        pid, tid, process_names = self._threads(track)
        category = self._categories(name, process_names)
        duration, is_closed = self._durations(start, track)
        start[is_closed & (duration < 0)] = NULL  # no time is that long: 64 bits do not hold it
        is_instant: Bools = self._type == EventType.INSTANT
        is_allocation = is_instant & (name == self._code(ALLOCATION))
        is_python = (
            self._is_skipped_frame(category, name) if not stacks else np.zeros(len(name), np.bool_)
        )
        is_complete = ~is_instant & is_closed & has_clock
        is_kept = is_complete & ~is_python
        skipped = {
            NO_END_KEY: int((~is_instant & ~is_closed).sum()),
            NO_CLOCK_KEY: int((~has_clock).sum()),
            INSTANT_KEY: int((is_instant & ~is_allocation).sum()),
            UNKNOWN_NAME_KEY: int((name == NULL).sum()),
        }
        columns = {
            EventColumn.ID: np.cumsum(is_complete) - 1,
            EventColumn.TS: start,
            EventColumn.DUR: duration,
            EventColumn.PID: pid,
            EventColumn.TID: tid,
            EventColumn.NAME: name,
            EventColumn.CAT: category,
        }
        part = self._part(columns, is_kept, is_allocation & has_clock)
        return ResolvedRows(
            part,
            self._texts,
            skipped={key: count for key, count in skipped.items() if count},
            python_frames=int((is_complete & is_python).sum()),
        )

    def _part(
        self, columns: dict[EventColumn, Ints], is_kept: Bools, is_allocation: Bools
    ) -> ScannedPart:
        """Return the kept rows with the columns of arguments beside *columns*, and the allocator's rows."""
        columns_with_values = set(chain.from_iterable(self._packets.chunks))
        arguments = {number for number in columns_with_values if number < len(EventColumn)}
        parts: dict[EventColumn, ColumnPart] = {}
        memory: dict[EventColumn, Ints] = {}
        has_allocations = bool(is_allocation.any())
        for column in EventColumn:
            if column in columns:
                values = columns[column]
            elif column in arguments:
                values = self._packets.column(column)
            else:
                continue
            if has_allocations:
                memory[column] = values[is_allocation]
            kept = values[is_kept]
            has_value = kept != NULL
            if has_value.any():
                parts[column] = ColumnPart(kept, None, not has_value.all())
        count = int(is_kept.sum())
        part = ScannedPart(chunks=[TextChunk(0, count, parts)], complete=count, events=len(is_kept))
        if has_allocations:
            nothing = np.full(int(is_allocation.sum()), NULL, np.int64)
            part.memory.append(
                np.stack(
                    [memory.get(column, nothing) for column in MEMORY_COLUMNS.values()], axis=1
                )
            )
        return part

    def _code(self, text: bytes) -> int:
        """Return the code of a text, which is added if it is new."""
        if text not in self._codes:
            self._codes[text] = len(self._texts)
            self._texts.append(text)
        return self._codes[text]

    def _periods(self) -> Ints:
        """Return how often the names of each row's writer had been forgotten before."""
        forgotten = self._state.forgotten
        pairs = [(int(writer), packet) for writer in forgotten for packet in forgotten[writer]]
        if not pairs:
            return np.zeros(len(self._packet), np.int64)
        events = pl.DataFrame(
            pairs, schema={"writer": pl.Int64, "packet": pl.Int64}, orient="row", strict=False
        ).sort("packet")
        # How often the writer's names had been forgotten, as of each packet that forgets them.
        counts = events.with_columns(period=pl.int_range(1, pl.len() + 1).over("writer"))
        rows = pl.DataFrame({"writer": self._writer, "packet": self._packet}).with_row_index("row")
        with_counts = rows.sort("packet").join_asof(
            counts, on="packet", by="writer", check_sortedness=False
        )
        periods = with_counts.sort("row")["period"].fill_null(0)
        return periods.cast(pl.Int64).to_numpy()

    def _tracks(self, track: Ints, writer: Ints) -> Ints:
        """Return each row's track, which may be its writer's default."""
        return np.where(track == NULL, values_by_key(self._state.default_track, writer), track)

    def _times(self, time: Ints, clock: Ints, writer: Ints | None = None) -> tuple[Ints, Bools]:
        """Return times on the trace's own clock, and which could be placed there."""
        writer = self._writer if writer is None else writer
        clock = np.where(clock == NULL, values_by_key(self._state.default_clock, writer), clock)
        clock[clock == NULL] = BOOT_CLOCK
        is_shown_by_a_clock = (time > -LATEST_NS) & (time < LATEST_NS)
        time = np.where(is_shown_by_a_clock, time, NULL)
        # One offset per clock, then per row.
        numbers, row_clock = np.unique(clock, return_inverse=True)
        offsets = [self._state.clock_offset(number) for number in numbers.tolist()]
        is_related = np.array([offset is not None for offset in offsets], np.bool_)[row_clock]
        offset_of_row = np.array([offset or 0 for offset in offsets], np.int64)[row_clock]
        return np.where(time == NULL, NULL, time + offset_of_row), is_related

    def _look_up(
        self, table: Names, number: Ints, convert: Callable[[bytes], int] | None = None
    ) -> Ints:
        """Return the code of the name that each number stands for, ``NULL`` where the file has none."""
        codes = np.full(len(number), NULL, np.int64)
        entries = [entry for entry in self._state.names if entry.table == table]
        if not entries or not (number != NULL).any():
            return codes
        convert = convert or self._code
        named = []
        for entry in entries:
            code = convert(entry.name)
            named.append((entry.writer, entry.period, entry.number, entry.packet, code))
        columns = ("writer", "period", "number", "packet", "code")
        names = pl.DataFrame(named, schema=dict.fromkeys(columns, pl.Int64), orient="row")
        rows = pl.DataFrame(
            {
                "writer": self._writer,
                "period": self._period,
                "number": number,
                "packet": self._packet,
                "row": np.arange(len(number)),
            }
        ).filter(number != NULL)
        key = ["writer", "period", "number"]
        # A name counts from its packet on; a number that was given twice stands for the name given
        # last.
        with_names = rows.sort("packet").join_asof(
            names.sort("packet", maintain_order=True),
            on="packet",
            by=key,
            strategy="backward",
            check_sortedness=False,
        )
        with_names = with_names.drop_nulls("code")
        codes[with_names["row"].to_numpy()] = with_names["code"].to_numpy()
        return codes

    def _names(self) -> Ints:
        """Return the code of each row's name: its own, that of its number, of its kernel, or of its stage."""
        packets = self._packets
        name = self._canonical(packets.column(EventColumn.NAME))
        for table, column in (
            (Names.EVENT, PacketColumn.NAME_ID),
            (Names.KERNEL, PacketColumn.KERNEL_ID),
        ):
            missing = name == NULL
            if missing.any():
                name = np.where(missing, self._look_up(table, packets.column(column)), name)
        missing = (name == NULL) & self._is_stage
        if missing.any():
            stage = self._look_up(Names.STAGE, packets.column(PacketColumn.STAGE_ID))
            name = np.where(missing, stage, name)
        return self._copy_names(name)

    def _canonical(self, codes: Ints) -> Ints:
        """Return texts of the scanner with the codes of this resolver, so that equal texts have equal codes."""
        present = np.unique(codes[codes != NULL])
        if not len(present):
            return codes
        mapped = np.array(
            [self._code(self._packets.texts[code]) for code in present.tolist()], np.int64
        )
        canonical = codes.copy()
        has_text = codes != NULL
        canonical[has_text] = mapped[np.searchsorted(present, codes[has_text])]
        return canonical

    def _copy_names(self, name: Ints) -> Ints:
        """Return names in which copies say from where to where, as in PyTorch's JSON traces of earlier versions."""
        is_bare = name == self._code(b"Memcpy")
        kinds = []
        for column in (PacketColumn.COPY_KIND, PacketColumn.SOURCE_KIND, PacketColumn.TARGET_KIND):
            kinds.append(self._packets.column(column))
        is_bare &= kinds[0] != NULL
        if not is_bare.any():
            return name
        name = name.copy()
        distinct, which = np.unique(
            np.stack([kind[is_bare] for kind in kinds]), axis=1, return_inverse=True
        )
        codes = [self._code(self._copy_name(*column)) for column in distinct.T.tolist()]
        name[is_bare] = np.array(codes, np.int64)[which.ravel()]
        return name

    def _copy_name(self, kind: int, source: int, target: int) -> bytes:
        """Return the name of a copy from the codes of its kind and of both kinds of memory."""
        text = f"Memcpy {decode_text(self._texts[kind])}"
        if NULL not in (source, target):
            text += f" ({self._memory_kind(source)} -> {self._memory_kind(target)})"
        return text.encode("utf-8", "replace")

    def _memory_kind(self, code: int) -> str:
        """Return the kind of memory that a text names, as PyTorch spells it."""
        memory = decode_text(self._texts[code])
        return PERFETTO_MEMORY_KINDS.get(memory, memory)

    def _threads(self, track: Ints) -> tuple[Ints, Ints, dict[str, Bools]]:
        """Return process and thread of each row, and by the first word of process names which rows they have.

        Render stages have GPU and stream in their place, as in PyTorch's JSON traces.
        """
        named: dict[str, Bools] = {}
        distinct, which = np.unique(track, return_inverse=True)
        pids = np.full(len(distinct), NULL, np.int64)
        tids = np.full(len(distinct), NULL, np.int64)
        process_words = []  # first words of the names of processes
        for i, number in enumerate(distinct.tolist()):
            thread = self._state.find_thread(number)
            if thread.pid is not None:
                pids[i] = thread.pid
            if thread.tid is not None:
                tids[i] = thread.tid
            process_words.append(thread.name.partition(" ")[0])
        pid = pids[which]
        tid = tids[which]
        device = self._packets.column(EventColumn.DEVICE)
        stream = self._packets.column(EventColumn.STREAM)
        pid[self._is_stage] = device[self._is_stage]
        tid[self._is_stage] = stream[self._is_stage]
        words = np.array(process_words)
        for word in ("GPU", "Overhead"):
            named[word] = (words == word)[which]
        return pid, tid, named

    def _categories(self, name: Ints, process_names: dict[str, Bools]) -> Ints:
        """Return the code of each row's category: what the file says, else what its arguments and track tell."""
        packets = self._packets
        category = self._canonical(packets.column(EventColumn.CAT))
        numbered = self._look_up(Names.CATEGORY, packets.column(PacketColumn.CATEGORY_ID))
        category = np.where(category == NULL, numbered, category)
        if self._is_stage.any():
            stage = self._look_up(
                Names.STAGE, packets.column(PacketColumn.STAGE_ID), self._stage_category
            )
            category = np.where(self._is_stage, stage, category)
        is_unknown = category == NULL
        if not is_unknown.any():
            return category
        traits = packets.column(PacketColumn.TRAITS)

        def has_trait(trait: Trait) -> Bools:
            bit: Bools = (traits >> trait) & 1 == 1
            return bit

        def has_value(column: EventColumn | PacketColumn) -> Bools:
            present: Bools = packets.column(column) != NULL
            return present

        is_on_gpu = process_names["GPU"] | has_trait(Trait.GRID)
        has_correlation = has_value(EventColumn.CORRELATION)
        is_copy = has_value(PacketColumn.COPY_KIND) | (
            is_on_gpu & self._starts_with(name, b"Memcpy")
        )
        is_memset = has_trait(Trait.MEMORY_KIND) | (is_on_gpu & self._starts_with(name, b"Memset"))
        is_call = has_trait(Trait.CALLBACK) | (has_correlation & ~is_on_gpu)
        is_driver_call = (
            is_call & self._starts_with(name, b"cu") & ~self._starts_with(name, b"cuda")
        )
        is_operator = (
            has_value(EventColumn.SEQUENCE)
            | has_value(EventColumn.SHAPES)
            | has_value(EventColumn.CONCRETE)
            | has_value(EventColumn.STRIDES)
        )
        cases = (  # the first that holds decides
            (has_trait(Trait.SYNC_KIND), b"cuda_sync"),
            (is_copy, b"gpu_memcpy"),
            (is_memset, b"gpu_memset"),
            (has_trait(Trait.GRID) | (is_on_gpu & has_correlation), b"kernel"),
            (is_driver_call, b"cuda_driver"),
            (is_call, b"cuda_runtime"),
            (process_names["Overhead"], b"overhead"),
            (is_on_gpu, b"gpu_user_annotation"),
            (has_trait(Trait.PYTHON_ID), PYTHON_CATEGORY),
            (is_operator | self._starts_with(name, b"aten::"), b"cpu_op"),
            (self._type == EventType.BEGIN, b"user_annotation"),
        )
        inferred = np.select(
            [condition for condition, _ in cases],
            [self._code(text) for _, text in cases],
            default=NULL,
        )
        return np.where(is_unknown & ~self._is_stage, inferred, category)

    def _stage_category(self, stage: bytes) -> int:
        """Return the code of the category of a stage by its name."""
        return self._code(
            STAGE_CATEGORIES.get(decode_text(stage), decode_text(stage)).encode("utf-8", "replace")
        )

    def _starts_with(self, codes: Ints, prefix: bytes) -> Bools:
        """Return which texts start with *prefix*."""
        matches = np.array([*(text.startswith(prefix) for text in self._texts), False])
        return matches[np.where(codes == NULL, len(matches) - 1, codes)]

    def _is_skipped_frame(self, category: Ints, name: Ints) -> Bools:
        """Return which rows are Python frames other than calls of modules."""
        is_python: Bools = category == self._code(PYTHON_CATEGORY)
        return is_python & ~self._starts_with(name, MODULE_CALL) if is_python.any() else is_python

    def _durations(self, start: Ints, track: Ints) -> tuple[Ints, Bools]:
        """Return the duration of each row, and which rows have one."""
        duration = self._packets.column(EventColumn.DUR)
        begins = np.flatnonzero(self._type == EventType.BEGIN)
        if not len(begins):
            return duration, self._is_stage.copy()
        packet, time, clock, writer, end_track = np.concatenate(
            [np.empty((0, 5), np.int64), *self._packets.ends]
        ).T
        end_time, has_clock = self._times(time, clock, writer)
        end_track = self._tracks(end_track, writer)
        usable = has_clock & (end_time != NULL)
        ends = packet[usable], end_time[usable], end_track[usable]
        partner = match_ends((self._packet[begins], start[begins], track[begins]), ends)
        closed = begins[partner != NO_END]
        duration[closed] = ends[1][partner[partner != NO_END]] - start[closed]
        is_closed = self._is_stage.copy()
        is_closed[closed] = True
        return duration, is_closed
