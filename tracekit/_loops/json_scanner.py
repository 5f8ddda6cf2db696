"""Scanner of PyTorch profiler traces: the JSON text of events to rows of integers.

``Scanner.scan`` walks the events in one buffer and writes one row of ``len(EventColumn)`` integers per
complete event. A text is stored once in a dictionary; rows hold its code. The scanner checks only
what it needs to find its way: an event that is not JSON is counted and stepped over.

Every method reads ``self.buffer`` only at indexes below ``self.end``, which ``scan`` checks against
the buffer's length. Loops that run once per byte therefore switch Cython's bounds checks off;
everything else keeps them.
"""

from __future__ import annotations

import secrets
from enum import IntEnum

from tracekit._loops.event_columns import EventColumn

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

if cython.compiled:
    from cython.cimports.libc.string import memchr, memcmp
    from cython.cimports.tracekit._loops.json_scanner import fold_product, load_word, trailing_zeros

NULL = -(2**63) + 2**31
"""Stands for "no value" in a row. Its low 32 bits are ``NULL32``, so a column cast to 32 bits keeps
its nulls."""

NULL32 = -(2**31)
"""``NULL`` in a column of 32-bit integers."""


class Target(IntEnum):
    """Use of a key's value that does not go to a ``EventColumn``."""

    PHASE = len(EventColumn)  # one letter that says what kind of event it is
    ARGS = len(EventColumn) + 1  # an object whose keys are looked up as well
    # A key that only events have: it helps to find the next event behind damage.
    IGNORED = len(EventColumn) + 2
    NONE = len(EventColumn) + 3  # the key is not known


class Level(IntEnum):
    """Sets of known keys."""

    EVENT = 0
    ARGS = 1
    MEMORY_ARGS = 2  # arguments of the allocator's events


class Status(IntEnum):
    """Why a scan stopped."""

    MORE = 0  # at the end of the buffer, between two events
    END = 1  # behind the bracket that closes the list of events
    PARTIAL = 2  # before an event that the end of the buffer cuts in two
    ROWS_FULL = 3  # before an event for which there is no row left
    TEXT_FULL = 4  # before an event whose texts do not fit into the dictionary


_SEED = secrets.randbits(64)
_SECOND_SEED = secrets.randbits(64)
"""Random numbers of this process. They decide where texts lie in the hash table, so that no file
can be made whose texts all lie in one place; what is read does not depend on them."""

FIXED_TEXTS = ("python_function", "[memory]", "stream ", "nn.Module: ", "torch::")
"""Texts that the scanner compares with. The caller adds them to the dictionary first: their codes
are 0 to 4."""

GAP_ROWS = 4 * (len(Level) * (len(EventColumn) + len(Target)) + 1)
"""Rows of the table of gaps: a few for each context, see ``Scanner._find_gap``."""
GAP_FIELDS = 5

if not cython.compiled:
    # The constants of json_scanner.pxd, which code without the interpreter lock can read; a test
    # compares the values.
    _NULL = NULL
    _WIDTH, _FIRST_TEXT = len(EventColumn), EventColumn.NAME.value
    _TEXT_COLUMNS = _WIDTH - _FIRST_TEXT
    _ID, _TS, _DUR, _TID, _BYTES = 0, 1, 2, 4, 11
    _EVENT, _NAME, _CAT, _CONCRETE = 20, 21, 22, 30
    _PHASE, _ARGS, _IGNORED, _NO_TARGET, _CLOSED = range(
        len(EventColumn), len(EventColumn) + 5
    )  # _CLOSED: no key, the event ends
    _EVENT_LEVEL, _ARGS_LEVEL, _MEMORY_LEVEL = range(3)
    _MORE, _END, _PARTIAL, _ROWS_FULL, _TEXT_FULL = range(5)
    _PYTHON_FUNCTION, _MEMORY, _STREAM, _MODULE_CALL, _TORCH = range(5)  # codes of FIXED_TEXTS
    # Results of methods that return an index: the buffer ends first; the text is not JSON
    # (``broken_at`` says where).
    _CUT, _BROKEN = -1, -2
    _LONGEST_KEY = 32  # bytes; no known key is longer
    _UNKNOWN_PHASE = 1  # of an event whose "ph" is not one letter
    _LARGEST = 2**63 - 1
    # The largest number to which another digit can be appended.
    _MAX_BEFORE_DIGIT = _LARGEST // 10 - 1
    # Gaps: contexts per level, the context of an event's first key, gaps per context, bytes, and
    # the fields of a gap.
    _CONTEXTS = len(EventColumn) + len(Target)
    _START_CONTEXT = len(Level) * _CONTEXTS
    _GAPS_PER_CONTEXT = 4
    _SHORTEST_GAP, _LONGEST_GAP = 8, 64
    _FIRST_WORD, _START, _LENGTH, _TARGET, _LEVEL = range(5)
    # Words of eight bytes: masks, and the same byte eight times.
    _32_BITS = 2**32 - 1
    _64_BITS = 2**64 - 1  # cuts Python's integers to the width of C's
    _MIX = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads hashes over the table
    _ONES = 0x0101010101010101
    _HIGHS = 0x8080808080808080
    _QUOTES = 0x2222222222222222
    _BACKSLASHES = 0x5C5C5C5C5C5C5C5C


class Scanner:
    """One thread's scanner: its dictionary of texts, the rows it fills, and counts of what it has seen.

    The arrays belong to the caller, who passes ``memoryview`` objects, and calls ``set_dictionary``
    first.

    Args:
        targets: ``EventColumn`` or ``Target`` by ``Level`` and by the code of the key, ``[len(Level),
            keys]``.
        tile: A few rows and behind each the ends of its texts, ``[rows, len(EventColumn) + texts]``.
            They stay in the fastest cache until they are copied to ``columns``.
        columns: Rows, column by column, ``[len(EventColumn), rows]``.
        bounds: Least value, greatest value and number of values of each column, ``[3,
            len(EventColumn)]``.
        memory_rows: Rows of the allocator's events, numbers only.
        phases: Number of events that were not kept by the byte of their phase. 0 counts events
            without a phase, 1 those whose phase is not one letter.
        gaps: Texts between two values, ``[GAP_ROWS, GAP_FIELDS]``, see ``_find_gap``.
        unasked: Number of texts behind the keys in the dictionary, which the caller adds next: operators whose
            concrete inputs and strides are not kept.

    """

    def __init__(
        self,
        targets: cython.int[:, ::1],
        tile: cython.longlong[:, ::1],
        columns: cython.longlong[:, ::1],
        bounds: cython.longlong[:, ::1],
        memory_rows: cython.longlong[:, ::1],
        phases: cython.longlong[::1],
        gaps: cython.ulonglong[:, ::1],
        unasked: cython.longlong = 0,
    ) -> None:
        self.seed = _SEED
        self.second_seed = _SECOND_SEED
        self.targets = targets
        self.tile = tile
        self.columns = columns
        self.bounds = bounds
        self.memory_rows = memory_rows
        self.phases = phases
        self.gaps = gaps
        self.unasked_end = targets.shape[1] + unasked
        self.text_count = 0
        self.position = 0
        self.tile_rows = 0
        self.tile_columns = 0
        self.number = 0
        self.reset()
        self.clear_rows()

    def reset(self) -> None:
        """Set the counts to zero."""
        k: cython.Py_ssize_t
        self.events = 0
        self.complete = 0
        self.bad = 0
        self.first_bad = 0
        self.bad_values = 0
        self.first_bad_value = 0
        self.python_frames = 0
        for k in range(self.phases.shape[0]):
            self.phases[k] = 0

    def clear_rows(self) -> None:
        """Forget the rows, which the caller has copied."""
        column: cython.Py_ssize_t
        self.row_count = 0
        self.memory_count = 0
        for column in range(self.bounds.shape[1]):
            self.bounds[0, column] = _LARGEST
            self.bounds[1, column] = _NULL
            self.bounds[2, column] = 0

    def set_dictionary(
        self, slots: cython.ulonglong[::1], starts: cython.longlong[::1], heap: cython.uchar[::1]
    ) -> None:
        """Use these arrays for the dictionary: a hash table of zeros, and copies of the old texts and their bounds."""
        code: cython.Py_ssize_t
        self.slots = slots
        self.starts = starts
        self.heap = heap
        self.buffer = heap  # _hash reads it
        for code in range(self.text_count):
            self._insert(self._hash(starts[code], starts[code + 1]), code)

    def add_text(self, text: cython.const[cython.uchar][::1]) -> int:
        """Return the code of a text, which is added if it is new.

        The dictionary must have room for it.
        """
        self.buffer = text
        return int(self._intern(0, text.shape[0]))

    def scan(
        self,
        buffer: cython.const[cython.uchar][::1],
        start: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        *,
        is_last: cython.bint,
        keep_stacks: cython.bint,
    ) -> int:
        """Scan ``buffer[start:end]`` and return the ``Status``; ``position`` says where it stopped.

        Args:
            buffer: Text of events, from behind an event or behind the bracket that opens their
                list.
            start: Index of the first byte.
            end: Index behind the last byte.
            is_last: No bytes follow: an event that runs to the end is damaged if another event
                starts inside it.
            keep_stacks: Whether all Python frames become rows, not only calls of modules.

        """
        status: cython.int
        k: cython.Py_ssize_t
        if not 0 <= start <= end <= buffer.shape[0]:
            raise ValueError(f"bytes {start} to {end} are not in a buffer of {buffer.shape[0]}")
        self.buffer = buffer
        self.end = end
        for k in range(self.gaps.shape[0]):
            self.gaps[k, _LENGTH] = 0  # gaps of another buffer
        self.is_last = is_last
        self.keep_stacks = keep_stacks
        self.reread_budget = 16 * (end - start) + 1_000_000
        with cython.nogil:
            status = self._walk(start)
            self._flush_tile()
        return int(status)

    def _walk(self, i: cython.Py_ssize_t) -> cython.int:
        """Walk the list of events from *i*."""
        stop: cython.Py_ssize_t
        status: cython.int
        is_event: cython.bint
        while True:
            i = self._skip_space(i)
            self.position = i
            if i >= self.end:
                return _MORE
            if self.buffer[i] == ord(","):
                i += 1
                continue
            if self.buffer[i] == ord("]"):
                self.position = i + 1
                return _END
            if self.row_count + self.tile_rows >= self.columns.shape[1]:
                return _ROWS_FULL
            is_event = self.buffer[i] == ord("{")
            stop = self._read_event(i, _ARGS_LEVEL) if is_event else self._other_value_end(i)
            if stop >= 0 and is_event and not self._may_follow_event(stop):
                stop = self._broken(stop)  # a stray brace closed the event before its end
            if stop < 0:
                i = self._step_over_damage(i, stop)
                if i < 0:
                    return _PARTIAL
            elif not is_event:
                self._count_bad()
                self.events += 1
                i = stop
            else:
                status = self._keep_event(i)
                if status != _MORE:
                    return status
                i = stop

    def _may_follow_event(self, i: cython.Py_ssize_t) -> cython.bint:
        """Return whether what comes next from *i* may stand behind an event.

        The comma between two may be missing.
        """
        i = self._skip_space(i)
        if i >= self.end:
            return True
        if self.buffer[i] == ord(","):
            return not self._is_key(self._skip_space(i + 1))
        return self.buffer[i] == ord("]") or self.buffer[i] == ord("{")

    def _is_key(self, i: cython.Py_ssize_t) -> cython.bint:
        """Return whether a key and its colon stand at *i*; False if the buffer ends there."""
        if i >= self.end or self.buffer[i] != ord('"'):
            return False
        i = self._string_end(i + 1)
        if i < 0:
            return False
        i = self._skip_space(i + 1)
        return i < self.end and self.buffer[i] == ord(":")

    def _broken(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Note that the text is not JSON at *i*."""
        self.broken_at = i
        return _BROKEN

    def _step_over_damage(
        self, i: cython.Py_ssize_t, failure: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return where to go on behind the damaged event at *i*, or ``_CUT`` if that takes more bytes."""
        after: cython.Py_ssize_t = _CUT
        if failure == _CUT:
            if self.is_last:
                after = self._next_event(i + 1)
            if after < 0:
                return _CUT
            self.reread_budget -= self.end - i
        else:
            self.reread_budget -= self.broken_at - i
            after = self._next_event(i + 1)
            if after < 0:
                if not self.is_last:
                    return _CUT
                after = self._list_end(self.broken_at)
        self._count_bad()
        self.events += 1
        # Without a limit a file made of unclosed strings would be read as often as it has events.
        return self.end if self.reread_budget < 0 else after

    def _count_bad(self) -> cython.int:
        """Count a damaged event."""
        if self.bad == 0:
            self.first_bad = self.events
        self.bad += 1
        return 0

    def _next_event(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the next index from *i* that looks like the start of an event, a brace in ``, {"ph"``, or ``_CUT``."""
        begin: cython.Py_ssize_t = i
        before: cython.Py_ssize_t
        key: cython.Py_ssize_t
        key_end: cython.Py_ssize_t
        end: cython.Py_ssize_t = self.end
        while True:
            i = self._find(ord("{"), i)
            if i < 0:
                return _CUT
            before = i - 1
            while before >= begin and self.buffer[before] <= ord(" "):
                before -= 1
            if before >= begin and self.buffer[before] == ord(","):
                key = self._skip_space(i + 1)
                if key < end and self.buffer[key] == ord('"'):
                    self.end = min(end, key + 2 + _LONGEST_KEY)
                    key_end = self._string_end(key + 1)
                    self.end = end
                    if key_end > 0 and self._target(key + 1, key_end, _EVENT_LEVEL) != _NO_TARGET:
                        return i
            i += 1

    def _other_value_end(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the index behind the value at *i*, an element of the list that is no object, ``_CUT`` or ``_BROKEN``.

        Valid lists can hold ``null``, for example. What may be the rest of a damaged event is not
        such a value: a list in which an event seems to start, and a value that a key follows.
        """
        stop: cython.Py_ssize_t
        after: cython.Py_ssize_t
        event: cython.Py_ssize_t
        if self.buffer[i] == ord('"'):
            stop = self._string_end(i + 1)
            if stop < 0:
                return _CUT
            stop += 1
        elif self.buffer[i] == ord("["):
            stop = self._skip_nested(i)
            if stop < 0:
                return self._broken(i)
            event = self._next_event(i)
            if 0 <= event < stop:
                return self._broken(i)
        else:
            stop = self._scalar_end(i)
            if stop < 0:
                return _CUT
            if stop == i or not self._is_json_scalar(i):
                return self._broken(i)
        after = self._skip_space(stop)
        if after >= self.end:
            return _CUT
        if self.buffer[after] == ord("]"):
            return stop
        if self.buffer[after] != ord(",") or self._is_key(self._skip_space(after + 1)):
            return self._broken(i)
        return stop

    def _list_end(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the index of the bracket that closes the list of events, or the end of the buffer.

        That is a bracket behind a brace, with a comma, a brace or nothing behind it.
        """
        bracket: cython.Py_ssize_t
        after: cython.Py_ssize_t
        while True:
            i = self._find(ord("}"), i)
            if i < 0:
                return self.end
            bracket = self._skip_space(i + 1)
            if bracket < self.end and self.buffer[bracket] == ord("]"):
                after = self._skip_space(bracket + 1)
                if (
                    after >= self.end
                    or self.buffer[after] == ord(",")
                    or self.buffer[after] == ord("}")
                ):
                    return bracket
            i += 1

    def _keep_event(self, i: cython.Py_ssize_t) -> cython.int:
        """Make a row of the event at *i*, which was read last, or count it.

        Returns ``_MORE`` or what is full.
        """
        has_time: cython.bint = self.tile[self.tile_rows, _TS] != _NULL
        # An event without a phase is complete if it has a time: one that lacks both is of no known
        # kind.
        is_complete: cython.bint = self.phase == ord("X") or (self.phase == 0 and has_time)
        is_memory: cython.bint = self.phase == ord("i") and self._has_text(_NAME, _MEMORY)
        is_timed: cython.bint = has_time and not self.has_bad_time
        if not is_complete:
            if is_memory and self.memory_count >= self.memory_rows.shape[0]:
                return _ROWS_FULL
            if not (is_memory and self._keep_memory(i)):
                self.phases[self.phase] += 1
        elif (
            not self.keep_stacks
            and is_timed
            and self._has_text(_CAT, _PYTHON_FUNCTION)
            and not self._is_module_call()
        ):
            self.python_frames += 1
            self.complete += 1
        elif self._append_row(is_timed) == _TEXT_FULL:
            return _TEXT_FULL
        if self.bad_values_in_event > 0:
            if self.bad_values == 0:
                self.first_bad_value = self.events
            self.bad_values += self.bad_values_in_event
        self.events += 1
        return _MORE

    def _append_row(self, has_time: cython.bint) -> cython.int:
        """Add the row of the event that was read last to the tile.

        Returns ``_MORE`` or ``_TEXT_FULL``.
        """
        row: cython.Py_ssize_t = self.tile_rows
        column: cython.int
        text_bytes: cython.longlong = 0
        name_first: cython.longlong = _NULL
        for column in range(_FIRST_TEXT, _WIDTH):
            if self.tile[row, column] != _NULL:
                text_bytes += self._text_end(column) - self.tile[row, column]
        if (
            self.text_count + _TEXT_COLUMNS >= self.starts.shape[0]
            or self.starts[self.text_count] + text_bytes > self.heap.shape[0]
        ):
            return _TEXT_FULL
        for column in range(_FIRST_TEXT, _WIDTH):
            if self.tile[row, column] == _NULL:
                continue
            if column == _NAME:
                name_first = self.tile[row, column]
            if column >= _CONCRETE and not self._is_asked(
                self.tile[row, _NAME], name_first, self._text_end(_NAME)
            ):
                self.tile[row, column] = _NULL
                continue
            self.tile[row, column] = self._intern(self.tile[row, column], self._text_end(column))
        self.tile[row, _ID] = self.complete
        self.tile[row, _EVENT] = self.events
        if has_time:
            self.complete += 1
        else:  # a row all the same: its category tells what was lost
            self.tile[row, _TS] = _NULL
            self._count_bad()
        self.tile_rows += 1
        if self.tile_rows == self.tile.shape[0]:
            self._flush_tile()
        return _MORE

    def _is_asked(
        self, code: cython.longlong, first: cython.Py_ssize_t, last: cython.Py_ssize_t
    ) -> cython.bint:
        """Return whether concrete inputs and strides are kept of events whose name is ``buffer[first:last]``.

        They are of operators, whose names have a namespace, but not of those that the caller listed:
        nobody asks what a view was given, and views are most of all operators.
        """
        colon: cython.Py_ssize_t = first
        if code == _NULL or self.targets.shape[1] <= code < self.unasked_end:
            return False
        if last - first > 7 and self._equals(first, first + 7, _TORCH):
            return False
        while colon < last - 1:
            if self.buffer[colon] == ord(":") and self.buffer[colon + 1] == ord(":"):
                return True
            colon += 1
        return False

    def _keep_memory(self, i: cython.Py_ssize_t) -> cython.int:
        """Read the allocator's event at *i* again for its own arguments.

        Keep it if it has a time and a size.
        """
        row: cython.Py_ssize_t = self.tile_rows
        k: cython.Py_ssize_t
        self._read_event(i, _MEMORY_LEVEL)
        if self.tile[row, _TS] == _NULL or self.has_bad_time or self.tile[row, _BYTES] == _NULL:
            return 0
        for k in range(_FIRST_TEXT):
            self.memory_rows[self.memory_count, k] = self.tile[row, k]
        self.memory_count += 1
        return 1

    # _walk stops before the tile and the columns hold more rows than they have.
    @cython.boundscheck(False)
    def _flush_tile(self) -> cython.int:
        """Copy the rows of the tile behind those in the columns, and update the bounds.

        A column that has had no value so far is not written at all.
        """
        rows: cython.Py_ssize_t = self.tile_rows
        first: cython.Py_ssize_t = self.row_count
        row: cython.Py_ssize_t
        column: cython.Py_ssize_t
        value: cython.longlong
        least: cython.longlong
        greatest: cython.longlong
        count: cython.longlong
        self.tile_columns |= (1 << _ID) | (1 << _EVENT) | (1 << _TS)
        for column in range(_WIDTH):
            count = self.bounds[2, column]
            if (self.tile_columns >> column) & 1 == 0:
                if count > 0:
                    for row in range(rows):
                        self.columns[column, first + row] = _NULL
                continue
            if count == 0:
                for row in range(first):
                    self.columns[column, row] = _NULL
            least = self.bounds[0, column]
            greatest = self.bounds[1, column]
            for row in range(rows):
                value = self.tile[row, column]
                self.columns[column, first + row] = value
                if value != _NULL:
                    least = min(least, value)
                    greatest = max(greatest, value)
                    count += 1
            self.bounds[0, column] = least
            self.bounds[1, column] = greatest
            self.bounds[2, column] = count
        self.row_count = first + rows
        self.tile_rows = 0
        self.tile_columns = 0
        return 0

    # Every read is behind a check of i < self.end, and targets below _WIDTH are columns of the
    # tile.
    @cython.boundscheck(False)
    def _read_event(self, start: cython.Py_ssize_t, args_level: cython.int) -> cython.Py_ssize_t:
        """Read the object at *start* into the next row of the tile: numbers, and of texts the bounds in the buffer.

        Returns the index behind it, ``_CUT`` or ``_BROKEN``. *args_level* is the level of its
        arguments' keys.

        A key's target says where its value goes: below ``_FIRST_TEXT`` a column of numbers, below
        ``_WIDTH`` a column of texts, above no column. The bytes between two values (a gap) are the
        same in most events of a file: they are remembered with the target that they lead to, under
        the key before them (the context), so that most keys are found by comparing bytes
        (``_find_gap``).
        """
        i: cython.Py_ssize_t = start + 1
        begin: cython.Py_ssize_t
        gap: cython.Py_ssize_t = -1
        context: cython.Py_ssize_t = _START_CONTEXT
        level: cython.int = _EVENT_LEVEL
        target: cython.int
        # Not used when an allocator's event is read again: remembered gaps hold targets of
        # _ARGS_LEVEL.
        uses_known_gaps: cython.bint = args_level == _ARGS_LEVEL
        self._clear_row(self.tile_rows)
        self.phase = 0
        self.bad_values_in_event = 0
        self.has_bad_time = False
        while True:
            if uses_known_gaps:
                gap = self._find_gap(context, i)
            if gap >= 0:
                i += self.gaps[gap, _LENGTH]
                target = self.gaps[gap, _TARGET]
                level = self.gaps[gap, _LEVEL]
            else:
                begin = i
                i = self._next_value(i, context == _START_CONTEXT, level, args_level)
                if i < 0:
                    return i
                target = self.next_target
                level = self.next_level
                # What follows "args" decides whether its keys are looked up.
                if uses_known_gaps and target != _ARGS:
                    self._remember_gap(context, begin, i - begin)
            if target == _CLOSED:
                return i
            context = level * _CONTEXTS + target
            # Behind a gap that was remembered without blanks at its end.
            if self.buffer[i] <= ord(" "):
                i = self._skip_space(i)
                if i >= self.end:
                    return _CUT
            i = self._read_value(i, target)
            if i < 0:
                return i

    # As in _read_event; the caller has checked that i < self.end.
    @cython.boundscheck(False)
    def _read_value(self, i: cython.Py_ssize_t, target: cython.int) -> cython.Py_ssize_t:
        """Read the value at *i* into the row, as its key's target says.

        Returns the index behind it or a failure.
        """
        row: cython.Py_ssize_t = self.tile_rows
        first: cython.Py_ssize_t = i
        last: cython.Py_ssize_t
        is_time: cython.bint = target == _TS or target == _DUR
        c: cython.uchar = self.buffer[i]
        if target < _WIDTH:
            self.tile_columns |= cython.cast(cython.ulonglong, 1) << target
        if c == ord('"'):
            first = i + 1
            last = self._string_end(first)
            if last < 0:
                return _CUT
            if target == _PHASE:
                self.phase = self._phase(first, last)
            elif self._is_text(target):
                self._set_text(target, first, last)
            elif target < _FIRST_TEXT:
                self._read_quoted_number(first, last, target)
                self.tile[row, target] = self.number
                # _NULL is < 0.
                if (target == _TS and self.number == _NULL) or (target == _DUR and self.number < 0):
                    self.has_bad_time = True
            return last + 1
        if c == ord("{") or c == ord("["):
            last = self._skip_nested(i)
            if last < 0:
                return last
            if self._is_text(target):
                self._set_text(target, first, last)
            elif is_time:
                self.has_bad_time = True
            return last
        if target < _FIRST_TEXT:
            i = self._read_number(first, self.end, is_time)
            # Nearly all numbers end here; negative and cut ones and what is no number (_NULL < 0)
            # are looked at below.
            if self.number >= 0 and i < self.end and self._ends_scalar(self.buffer[i]):
                self.tile[row, target] = self.number
                return i
        last = self._scalar_end(i)
        if last < 0:
            return _CUT
        if last == first:
            return self._broken(first)
        if not self._is_json_scalar(first):
            self.bad_values_in_event += 1
            if is_time:
                self.has_bad_time = True
        elif target < _FIRST_TEXT:
            if last != i:  # something behind the number: it is none
                self.number = _NULL
            self.tile[row, target] = self.number
            if target == _DUR and self.number < 0:  # _NULL is < 0
                self.has_bad_time = True
        elif self._is_text(target) and c != ord("n"):  # null is no text
            self._set_text(target, first, last)
        return last

    def _phase(self, first: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.int:
        """Return the phase that ``buffer[first:last]`` spells, ``_UNKNOWN_PHASE`` if it is not one letter."""
        letter: cython.int = _UNKNOWN_PHASE
        if first < last and last - first == self._escape_length(first):
            letter = self._unescape(first, last)
        return letter if ord(" ") <= letter < 256 else _UNKNOWN_PHASE

    def _is_text(self, target: cython.int) -> cython.bint:
        """Return whether a target is a column of texts."""
        return _FIRST_TEXT <= target < _WIDTH

    def _next_value(
        self,
        i: cython.Py_ssize_t,
        is_first_key: cython.bint,
        level: cython.int,
        args_level: cython.int,
    ) -> cython.Py_ssize_t:
        """Find the next value from *i*, which is behind a value or behind the brace that opens the event.

        Returns its index, ``_CUT`` or ``_BROKEN``; ``next_target`` and ``next_level`` say what the
        value is used for. If the event ended, ``next_target`` is ``_CLOSED``, and the index is that
        behind the event.
        """
        first: cython.Py_ssize_t
        last: cython.Py_ssize_t
        target: cython.int
        c: cython.uchar
        while True:
            # The comma, then the key or the end of the object.
            i = self._skip_space(i)
            if i >= self.end:
                return _CUT
            c = self.buffer[i]
            if not is_first_key and c == ord(","):
                i = self._skip_space(i + 1)
                if i >= self.end:
                    return _CUT
                c = self.buffer[i]
            elif not is_first_key and c != ord("}"):
                return self._broken(i)
            if c == ord("}"):
                i += 1
                if level == _EVENT_LEVEL:
                    self.next_target = _CLOSED
                    self.next_level = level
                    return i
                level = _EVENT_LEVEL
                is_first_key = False
                continue
            if c != ord('"'):
                return self._broken(i)
            first = i + 1
            last = self._string_end(first)
            if last < 0:
                return _CUT
            target = self._target(first, last, level)
            i = self._skip_space(last + 1)
            if i >= self.end:
                return _CUT
            if self.buffer[i] != ord(":"):
                return self._broken(i)
            i = self._skip_space(i + 1)
            if i >= self.end:
                return _CUT
            if target == _ARGS and self.buffer[i] == ord("{"):
                level = args_level
                is_first_key = True
                i += 1
                continue
            self.next_target = target
            self.next_level = level
            return i

    # Both texts lie before self.end: _LONGEST_GAP bytes follow i, and gaps were read before.
    @cython.boundscheck(False)
    def _find_gap(self, context: cython.Py_ssize_t, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the row of ``gaps`` whose text stands at *i* too, or -1.

        A profiler writes the same few texts between two values again and again, such as ``, "tid":
        `` or a line break and ``"args": {``. They are remembered by the key before them
        ("context"), so that most keys need only a comparison, which saves a quarter of the time. A
        text means the same wherever its bytes and its context are the same.
        """
        gap: cython.Py_ssize_t
        k: cython.Py_ssize_t
        start: cython.Py_ssize_t
        last: cython.Py_ssize_t
        word: cython.ulonglong
        if i + _LONGEST_GAP >= self.end:
            return -1
        word = self._word(i)
        for gap in range(context * _GAPS_PER_CONTEXT, (context + 1) * _GAPS_PER_CONTEXT):
            if self.gaps[gap, _FIRST_WORD] != word:
                continue
            start = self.gaps[gap, _START]
            last = self.gaps[gap, _LENGTH]
            last -= 8  # where the last word starts
            if last >= 0 and self._word(start + last) == self._word(i + last):
                k = 8
                while k < last and self._word(start + k) == self._word(i + k):
                    k += 8
                if k >= last:
                    return gap
        return -1

    def _remember_gap(
        self, context: cython.Py_ssize_t, start: cython.Py_ssize_t, length: cython.Py_ssize_t
    ) -> cython.int:
        """Remember the gap that starts at *start*, in place of the one that was remembered longest."""
        gap: cython.Py_ssize_t = context * _GAPS_PER_CONTEXT
        k: cython.Py_ssize_t
        if not _SHORTEST_GAP <= length <= _LONGEST_GAP:
            return 0
        for k in range(gap + _GAPS_PER_CONTEXT - 1, gap, -1):
            self.gaps[k, _FIRST_WORD] = self.gaps[k - 1, _FIRST_WORD]
            self.gaps[k, _START] = self.gaps[k - 1, _START]
            self.gaps[k, _LENGTH] = self.gaps[k - 1, _LENGTH]
            self.gaps[k, _TARGET] = self.gaps[k - 1, _TARGET]
            self.gaps[k, _LEVEL] = self.gaps[k - 1, _LEVEL]
        self.gaps[gap, _FIRST_WORD] = self._word(start)
        self.gaps[gap, _START] = start
        self.gaps[gap, _LENGTH] = length
        self.gaps[gap, _TARGET] = self.next_target
        self.gaps[gap, _LEVEL] = self.next_level
        return 0

    def _set_text(
        self, column: cython.int, first: cython.Py_ssize_t, last: cython.Py_ssize_t
    ) -> cython.int:
        """Note that the text of a column of this row is ``buffer[first:last]``."""
        self.tile[self.tile_rows, column] = first
        self.tile[self.tile_rows, column + _TEXT_COLUMNS] = last
        return 0

    def _text_end(self, column: cython.int) -> cython.Py_ssize_t:
        """Return the index behind the text of a column of this row, see ``_set_text``."""
        return self.tile[self.tile_rows, column + _TEXT_COLUMNS]

    def _has_text(self, column: cython.int, code: cython.Py_ssize_t) -> cython.bint:
        """Return whether a column of the event read last holds the text of *code*."""
        first: cython.longlong = self.tile[self.tile_rows, column]
        return first != _NULL and self._equals(first, self._text_end(column), code)

    def _is_module_call(self) -> cython.bint:
        """Return whether the event read last is the Python frame of a call of an ``nn.Module``."""
        first: cython.longlong = self.tile[self.tile_rows, _NAME]
        return (
            first != _NULL
            and self._text_end(_NAME) - first > 11
            and self._equals(first, first + 11, _MODULE_CALL)
        )

    def _target(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t, level: cython.int
    ) -> cython.int:
        """Return what the value of the key ``buffer[first:last]`` is used for."""
        code: cython.Py_ssize_t = -1
        if last - first <= _LONGEST_KEY:
            code = self._lookup(first, last, self._hash(first, last))
        if code < 0:
            code = self._lookup_escaped(first, last)
        return self.targets[level, code] if 0 <= code < self.targets.shape[1] else _NO_TARGET

    def _lookup_escaped(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Return the code of the known key that ``buffer[first:last]`` spells with escapes, or -1."""
        code: cython.Py_ssize_t
        i: cython.Py_ssize_t
        k: cython.longlong
        i = first
        while i < last and self.buffer[i] != ord("\\"):
            i += 1
        if i == last:
            return -1
        for code in range(self.targets.shape[1]):
            k = self.starts[code]
            i = first
            while (
                i < last and k < self.starts[code + 1] and self._unescape(i, last) == self.heap[k]
            ):
                i += self._escape_length(i)
                k += 1
            if i >= last and k == self.starts[code + 1]:
                return code
        return -1

    def _escape_length(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return how many bytes the character at *i* takes in a JSON string."""
        if self.buffer[i] != ord("\\"):
            return 1
        return 6 if self.buffer[i + 1] == ord("u") else 2

    def _unescape(self, i: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.int:
        """Return the character at *i* of a string that ends at *last*.

        -1 if it is not one that known keys have.
        """
        k: cython.Py_ssize_t
        digit: cython.int
        character: cython.int = 0
        if self.buffer[i] != ord("\\"):
            return self.buffer[i]
        if self.buffer[i + 1] == ord("/"):
            return ord("/")
        if self.buffer[i + 1] != ord("u") or i + 6 > last:
            return -1
        for k in range(i + 2, i + 6):
            digit = self.buffer[k]
            if ord("0") <= digit <= ord("9"):
                digit -= ord("0")
            elif ord("a") <= (digit | 0x20) <= ord("f"):  # 0x20 makes a letter small
                digit = (digit | 0x20) - ord("a") + 10
            else:
                return -1
            character = character * 16 + digit
        return character

    def _intern(self, first: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the code of ``buffer[first:last]``, which is added to the dictionary if it is new."""
        hashed: cython.ulonglong = self._hash(first, last)
        code: cython.Py_ssize_t = self._lookup(first, last, hashed)
        begin: cython.Py_ssize_t
        k: cython.Py_ssize_t
        if code >= 0:
            return code
        code = self.text_count
        begin = self.starts[code]
        for k in range(last - first):
            self.heap[begin + k] = self.buffer[first + k]
        self.starts[code + 1] = begin + last - first
        self.text_count += 1
        self._insert(hashed, code)
        return code

    @cython.boundscheck(False)  # the mask keeps every slot inside the table
    def _lookup(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t, hashed: cython.ulonglong
    ) -> cython.Py_ssize_t:
        """Return the code of ``buffer[first:last]``, or -1 if the dictionary does not have it."""
        mask: cython.ulonglong = self.slots.shape[0] - 1
        slot: cython.ulonglong = (hashed >> 32) & mask
        entry: cython.ulonglong = self.slots[slot]
        code: cython.Py_ssize_t
        while entry != 0:
            code = cython.cast(cython.Py_ssize_t, entry & _32_BITS) - 1
            if entry >> 32 == hashed >> 32 and self._equals(first, last, code):
                return code
            slot = (slot + 1) & mask
            entry = self.slots[slot]
        return -1

    def _insert(self, hashed: cython.ulonglong, code: cython.Py_ssize_t) -> cython.int:
        """Add a code to the hash table."""
        mask: cython.ulonglong = self.slots.shape[0] - 1
        slot: cython.ulonglong = (hashed >> 32) & mask
        while self.slots[slot] != 0:
            slot = (slot + 1) & mask
        self.slots[slot] = (hashed >> 32 << 32) | (code + 1)
        return 0

    # The methods below look at every byte, so Cython's bounds checks would cost most here. They are
    # safe without: all callers pass 0 <= i, first, last <= self.end, and no index is read that was
    # not compared with one of them.

    @cython.boundscheck(False)
    def _clear_row(self, row: cython.Py_ssize_t) -> cython.int:
        """Set all columns of a row of the tile to null."""
        column: cython.Py_ssize_t
        for column in range(_WIDTH):
            self.tile[row, column] = _NULL
        return 0

    @cython.boundscheck(False)
    def _equals(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t, code: cython.Py_ssize_t
    ) -> cython.bint:
        """Return whether ``buffer[first:last]`` is the text of *code*, which is in the dictionary."""
        begin: cython.Py_ssize_t = self.starts[code]
        length: cython.Py_ssize_t = last - first
        if self.starts[code + 1] - begin != length:
            return False
        if cython.compiled:
            return (
                length == 0
                or memcmp(
                    cython.address(self.buffer[first]), cython.address(self.heap[begin]), length
                )
                == 0
            )
        return bytes(self.buffer[first:last]) == bytes(self.heap[begin : begin + length])

    @cython.boundscheck(False)
    def _word(self, i: cython.Py_ssize_t) -> cython.ulonglong:
        """Return the eight bytes from *i*, which must be there, as a number."""
        word: cython.ulonglong
        if cython.compiled:
            word = load_word(cython.address(self.buffer[i]))
        else:
            word = int.from_bytes(self.buffer[i : i + 8], "little")
        return word

    @cython.boundscheck(False)
    def _hash(self, first: cython.Py_ssize_t, last: cython.Py_ssize_t) -> cython.ulonglong:
        """Return the hash of ``buffer[first:last]``."""
        hashed: cython.ulonglong = self.seed ^ (last - first)
        word: cython.ulonglong = 0
        i: cython.Py_ssize_t = first
        while last - i > 16:
            hashed = self._mix(hashed ^ self._word(i), self.second_seed ^ self._word(i + 8))
            i += 16
        if last - i > 8:
            hashed = self._mix(hashed ^ self._word(i), _MIX)
            i += 8
        if last - first >= 8:
            word = self._word(last - 8)  # some bytes may be hashed twice
        else:
            while i < last:
                word = (word << 8) | self.buffer[i]
                i += 1
        return self._mix(hashed ^ word, _MIX)

    def _mix(self, a: cython.ulonglong, b: cython.ulonglong) -> cython.ulonglong:
        """Return both halves of a product of 128 bits, xored: every bit of it depends on every bit of *a* and *b*.

        One of them depends on a seed, so that nobody who does not know the seed can choose texts
        with the same hash.
        """
        product: cython.ulonglong
        if cython.compiled:
            product = fold_product(a, b)
        else:
            full = a * b
            product = (full ^ (full >> 64)) & _64_BITS
        return product

    @cython.boundscheck(False)
    def _find(self, wanted: cython.uchar, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the index of the next byte *wanted* from *i*, or ``_CUT``."""
        if cython.compiled:
            if i >= self.end:
                return _CUT
            start = cython.cast(cython.p_uchar, cython.address(self.buffer[i]))
            hit = cython.cast(cython.p_uchar, memchr(start, wanted, self.end - i))
            return i + (hit - start) if hit != cython.NULL else _CUT
        while i < self.end and self.buffer[i] != wanted:
            i += 1
        return i if i < self.end else _CUT

    @cython.boundscheck(False)
    def _skip_space(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the index of the next byte from *i* that is not a blank, a line break or a control character."""
        while i < self.end and self.buffer[i] <= ord(" "):
            i += 1
        return i

    @cython.boundscheck(False)
    def _string_end(self, first: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the index of the quote that closes the string whose text starts at *first*, or ``_CUT``."""
        i: cython.Py_ssize_t = first
        word: cython.ulonglong
        hits: cython.ulonglong
        while i + 8 <= self.end:
            word = self._word(i)
            hits = self._zero_bytes(word ^ _QUOTES) | self._zero_bytes(word ^ _BACKSLASHES)
            if hits == 0:
                i += 8
                continue
            i += self._first_byte(hits)
            if self.buffer[i] == ord('"'):
                return i
            i += 2  # the byte behind a backslash belongs to it
        while i < self.end:
            if self.buffer[i] == ord('"'):
                return i
            i += 2 if self.buffer[i] == ord("\\") else 1
        return _CUT

    def _zero_bytes(self, word: cython.ulonglong) -> cython.ulonglong:
        """Return a word with the high bit of each zero byte of *word* set.

        Bits above the first one may be wrong.
        """
        return ((word - _ONES) & _64_BITS) & ~word & _HIGHS

    def _first_byte(self, hits: cython.ulonglong) -> cython.Py_ssize_t:
        """Return the index of the first byte whose high bit is set; *hits* is not zero."""
        if cython.compiled:
            return trailing_zeros(hits) >> 3
        return ((hits & -hits).bit_length() - 1) >> 3

    @cython.boundscheck(False)
    def _skip_nested(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the index behind the array or object at *i*, ``_CUT`` or ``_BROKEN``.

        Behind a string there must be what JSON allows there: else texts behind a lost quote would
        count as structure.
        """
        depth: cython.Py_ssize_t = 0
        c: cython.uchar
        while i < self.end:
            c = self.buffer[i]
            if c == ord('"'):
                i = self._string_end(i + 1)
                if i < 0:
                    return _CUT
                i = self._skip_space(i + 1)
                if i >= self.end:
                    return _CUT
                c = self.buffer[i]  # behind the string: looked at below, as any other byte
                if c != ord(",") and c != ord(":") and c != ord("]") and c != ord("}"):
                    return self._broken(i)
            if c == ord("[") or c == ord("{"):
                depth += 1
            elif c == ord("]") or c == ord("}"):
                depth -= 1
                if depth == 0:
                    return i + 1
            i += 1
        return _CUT

    @cython.boundscheck(False)
    def _scalar_end(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the index behind the number or bare word at *i*, or ``_CUT``."""
        while i < self.end:
            if self._ends_scalar(self.buffer[i]):
                return i
            i += 1
        return _CUT

    def _ends_scalar(self, c: cython.uchar) -> cython.bint:
        """Return whether a byte cannot be part of a number or bare word."""
        return c <= ord(" ") or c == ord(",") or c == ord("]") or c == ord("}")

    def _is_json_scalar(self, i: cython.Py_ssize_t) -> cython.bint:
        """Return whether the bare word at *i* starts as a number, true, false or null.

        ``NaN`` and ``N/A`` do not.

        The byte behind a bare word is in the buffer, see ``_scalar_end``.
        """
        c: cython.uchar = self.buffer[i]
        if c == ord("-"):
            c = self.buffer[i + 1]
        if c == ord("n"):
            return self.buffer[i + 1] == ord("u")
        return ord("0") <= c <= ord("9") or c == ord("t") or c == ord("f")

    def _read_quoted_number(
        self, first: cython.Py_ssize_t, last: cython.Py_ssize_t, column: cython.int
    ) -> cython.int:
        """Read the number in the string ``buffer[first:last]``.

        As a thread, "stream 7" counts too (files of 2021).
        """
        if column == _TID and last - first > 7 and self._equals(first, first + 7, _STREAM):
            first += 7
        if self._read_number(first, last, column == _TS or column == _DUR) != last:
            self.number = _NULL
        return 0

    @cython.boundscheck(False)
    def _read_number(
        self, i: cython.Py_ssize_t, end: cython.Py_ssize_t, in_thousandths: cython.bint
    ) -> cython.Py_ssize_t:
        """Read the number at *i* into ``number``, never by way of a float.

        Returns the index behind it.

        The result is truncated to an integer; with *in_thousandths* it is multiplied by 1,000
        first, so that three decimals are kept. ``number`` is ``NULL`` if there is no number, or if
        it does not fit into 64 bits; then the index may lie inside the number.
        """
        value: cython.longlong = 0
        exponent: cython.int = 0
        # Power of ten by which value is multiplied in the end; as wide as an index, as each decimal
        # lowers it by one.
        scale: cython.Py_ssize_t = 3 if in_thousandths else 0
        first_digit: cython.Py_ssize_t
        is_negative: cython.bint = i < end and self.buffer[i] == ord("-")
        is_negative_exponent: cython.bint
        self.number = _NULL
        if is_negative:
            i += 1
        first_digit = i
        while i < end and ord("0") <= self.buffer[i] <= ord("9"):
            if value > _MAX_BEFORE_DIGIT:
                return i  # does not fit: number stays NULL
            value = value * 10 + (self.buffer[i] - ord("0"))
            i += 1
        if i == first_digit:
            return i
        if i < end and self.buffer[i] == ord("."):
            i += 1
            while i < end and ord("0") <= self.buffer[i] <= ord("9"):
                # Further digits change no thousandth of a number that fits.
                if value <= _MAX_BEFORE_DIGIT:
                    value = value * 10 + (self.buffer[i] - ord("0"))
                    scale -= 1
                i += 1
        if i < end and (self.buffer[i] == ord("e") or self.buffer[i] == ord("E")):
            i += 1
            is_negative_exponent = i < end and self.buffer[i] == ord("-")
            if is_negative_exponent or (i < end and self.buffer[i] == ord("+")):
                i += 1
            first_digit = i
            while i < end and ord("0") <= self.buffer[i] <= ord("9"):
                # No number with an exponent of 99 or more fits, so that larger ones need not be
                # told apart.
                exponent = min(exponent * 10 + (self.buffer[i] - ord("0")), 99)
                i += 1
            if i == first_digit:
                return i
            scale += -exponent if is_negative_exponent else exponent
        while scale < 0 and value > 0:
            value //= 10
            scale += 1
        while scale > 0 and value > 0:
            if value > _MAX_BEFORE_DIGIT:
                return i  # does not fit: number stays NULL
            value *= 10
            scale -= 1
        self.number = -value if is_negative else value
        return i
