"""Check of a pickle before it is loaded: opcodes of plain values alone, within limits.

The pickle is carried out without making its values: the stack and the memo hold, for each value,
only whether it is a text, a number or a container, and which. A container can be changed only until
the memo hands it out a second time. So no container can come to hold itself, and the size and depth
noted when it was last changed stay true.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

from tracekit._loops import let_interrupt

OK, CUT_OFF, DAMAGED, CALLS, UNKNOWN_OPCODE = range(5)
LONG_NUMBER, TOO_DEEP, TOO_LARGE, CHANGES_SHARED, CONTAINER_AS_KEY = range(5, 10)
"""Results of a check."""

_MARK, _TEXT, _NUMBER, _FIRST_CONTAINER = range(4)
"""Values on the stack and in the memo: texts and bytes, all else that holds no values, and
containers, each its number plus _FIRST_CONTAINER."""

_LIST, _DICT, _TUPLE = range(3)
"""Kinds of containers."""

_MAX_NUMBER_KEYS = 10_000
"""Most keys of dicts that are no texts; dumps and snapshots have none. A dict finds texts by a hash
that no file knows, and numbers by themselves: chosen ones would all fall on one place."""

_CALLING_OPCODES = memoryview(b"cRbioPQ\x81\x82\x83\x84\x92\x93\x97\x98")
"""GLOBAL, REDUCE, BUILD, INST, OBJ, PERSID, BINPERSID, NEWOBJ, EXT1, EXT2, EXT4, NEWOBJ_EX,
STACK_GLOBAL and the two opcodes of buffers outside the pickle: they name, call or fetch what the
file does not hold."""


@cython.cfunc
@cython.inline
def _read_unsigned(
    data: cython.const[cython.uchar][::1], start: cython.Py_ssize_t, count: cython.Py_ssize_t
) -> cython.longlong:
    """Return *count* bytes, at most 8, as a number.

    A length of 2**62 bytes and more is cut to that.
    """
    number: cython.longlong = 0
    i: cython.Py_ssize_t = count - 1
    while i >= 0:
        if number >= 1 << 54:
            return 1 << 62
        number = (number << 8) | cython.cast(cython.longlong, data[start + i])
        i -= 1
    return number


def check_pickle(
    data: cython.const[cython.uchar][::1],
    max_depth: cython.longlong,
    max_integer_bytes: cython.longlong,
    max_expanded: cython.longlong,
    stack: cython.int[::1],
    memo: cython.int[::1],
    kinds: cython.uchar[::1],
    depths: cython.int[::1],
    expanded: cython.longlong[::1],
    shared: cython.uchar[::1],
    position_out: cython.longlong[::1],
) -> int:
    """Check a pickle from its first byte to its STOP.

    Args:
        data: The pickle.
        max_depth: Largest nesting of containers.
        max_integer_bytes: Longest integer.
        max_expanded: Most values in one container, those inside it counted wherever they appear.
        stack, memo: Scratch space, as long as the data.
        kinds, depths, expanded, shared: Scratch space for the containers, as long as the data.
        position_out: Result: the position of the opcode at which the check ended.

    Returns:
        OK, or the first problem.

    """
    size: cython.Py_ssize_t = data.shape[0]
    position: cython.Py_ssize_t = 0
    height: cython.Py_ssize_t = 0
    memo_count: cython.longlong = 0
    container_count: cython.Py_ssize_t = 0
    mark: cython.int = _MARK
    text: cython.int = _TEXT
    plain_number: cython.int = _NUMBER
    first_container: cython.int = _FIRST_CONTAINER
    list_kind: cython.uchar = _LIST
    dict_kind: cython.uchar = _DICT
    tuple_kind: cython.uchar = _TUPLE
    calling: cython.const[cython.uchar][::1] = _CALLING_OPCODES
    opcode: cython.uchar
    argument_bytes: cython.Py_ssize_t
    length_bytes: cython.Py_ssize_t
    first: cython.Py_ssize_t  # where on the stack the values of a container begin
    base: cython.Py_ssize_t  # height of the stack below the values and their mark
    target: cython.Py_ssize_t
    i: cython.Py_ssize_t
    value: cython.int
    number: cython.longlong = 0
    number_keys: cython.longlong = 0
    max_number_keys: cython.longlong = _MAX_NUMBER_KEYS
    total: cython.longlong
    depth: cython.int
    inner_depth: cython.int
    pushes: cython.int  # the text or number that an opcode pushes; the mark: none
    makes: cython.int  # kind of the container that an opcode makes of values on the stack; -1: none
    changes: cython.int  # kind of the container that an opcode puts values in; -1: none
    has_mark: cython.bint
    is_key: cython.bint
    opcodes: cython.Py_ssize_t = 0
    while position < size:
        if (opcodes & 0xFFFF) == 0:
            let_interrupt()
        opcodes += 1
        opcode = data[position]
        position_out[0] = position
        position += 1
        if opcode == 0x2E:  # STOP
            return OK if height == 1 and stack[0] != mark else DAMAGED

        # Opcodes with an argument of fixed size, and with a length before what it is the length of.
        argument_bytes = 0
        length_bytes = 0
        pushes = mark
        makes = -1
        changes = -1
        has_mark = False
        base = height
        if opcode == 0x4E or opcode == 0x88 or opcode == 0x89:  # NONE, NEWTRUE, NEWFALSE
            pushes = plain_number
        elif opcode == 0x4B:  # BININT1
            pushes = plain_number
            argument_bytes = 1
        elif opcode == 0x4D:  # BININT2
            pushes = plain_number
            argument_bytes = 2
        elif opcode == 0x4A:  # BININT
            pushes = plain_number
            argument_bytes = 4
        elif opcode == 0x47:  # BINFLOAT
            pushes = plain_number
            argument_bytes = 8
        elif opcode == 0x8A:  # LONG1
            pushes = plain_number
            length_bytes = 1
        elif opcode == 0x8B:  # LONG4
            pushes = plain_number
            length_bytes = 4
        elif opcode == 0x8C or opcode == 0x43:  # SHORT_BINUNICODE, SHORT_BINBYTES
            pushes = text
            length_bytes = 1
        elif opcode == 0x58 or opcode == 0x42:  # BINUNICODE, BINBYTES
            pushes = text
            length_bytes = 4
        elif opcode == 0x8D or opcode == 0x8E:  # BINUNICODE8, BINBYTES8
            pushes = text
            length_bytes = 8
        elif opcode == 0x80:  # PROTO
            argument_bytes = 1
        elif opcode == 0x95:  # FRAME
            argument_bytes = 8
        elif opcode == 0x71 or opcode == 0x68:  # BINPUT, BINGET
            argument_bytes = 1
        elif opcode == 0x72 or opcode == 0x6A:  # LONG_BINPUT, LONG_BINGET
            argument_bytes = 4
        elif opcode == 0x94:  # MEMOIZE
            pass
        elif opcode == 0x28:  # MARK
            stack[height] = mark
            height += 1
            continue
        elif opcode == 0x5D:  # EMPTY_LIST
            makes = list_kind
        elif opcode == 0x7D:  # EMPTY_DICT
            makes = dict_kind
        elif opcode == 0x29:  # EMPTY_TUPLE
            makes = tuple_kind
        elif opcode == 0x85 or opcode == 0x86 or opcode == 0x87:  # TUPLE1, TUPLE2, TUPLE3
            makes = tuple_kind
            base = height - (cython.cast(cython.Py_ssize_t, opcode) - 0x84)
        elif opcode == 0x74:  # TUPLE
            makes = tuple_kind
            has_mark = True
        elif opcode == 0x61:  # APPEND
            changes = list_kind
            base = height - 1
        elif opcode == 0x73:  # SETITEM
            changes = dict_kind
            base = height - 2
        elif opcode == 0x65:  # APPENDS
            changes = list_kind
            has_mark = True
        elif opcode == 0x75:  # SETITEMS
            changes = dict_kind
            has_mark = True
        else:
            for i in range(calling.shape[0]):
                if calling[i] == opcode:
                    return CALLS
            return UNKNOWN_OPCODE

        # The argument; behind a length, what it is the length of.
        if length_bytes:
            if position + length_bytes > size:
                return CUT_OFF
            number = _read_unsigned(data, position, length_bytes)
            if (opcode == 0x8A or opcode == 0x8B) and number > max_integer_bytes:
                return LONG_NUMBER
            position += length_bytes
            if number > size - position:
                return CUT_OFF
            position += number
        elif argument_bytes:
            if position + argument_bytes > size:
                return CUT_OFF
            number = _read_unsigned(data, position, argument_bytes)
            position += argument_bytes
            if opcode == 0x80 and (number < 2 or number > 5):
                return UNKNOWN_OPCODE
            if opcode == 0x95 and number > size - position:
                return CUT_OFF

        if pushes != mark:
            stack[height] = pushes
            height += 1
            continue

        # The memo. Writers number its values from 0 without holes.
        if opcode == 0x71 or opcode == 0x72 or opcode == 0x94:  # BINPUT, LONG_BINPUT, MEMOIZE
            if opcode == 0x94:
                number = memo_count
            if height == 0 or stack[height - 1] == mark or number > memo_count:
                return DAMAGED
            memo[number] = stack[height - 1]
            if number == memo_count:
                memo_count += 1
            continue
        if opcode == 0x68 or opcode == 0x6A:  # BINGET, LONG_BINGET
            if number >= memo_count:
                return DAMAGED
            value = memo[number]
            if value >= first_container:
                shared[value - first_container] = 1
            stack[height] = value
            height += 1
            continue

        # Containers: the values from *first* on are put into a new one, or into the one below them.
        if makes < 0 and changes < 0:
            continue
        if has_mark:
            base = height - 1
            while base >= 0 and stack[base] != mark:
                base -= 1
            first = base + 1
        else:
            first = base
        if base < 0:
            return DAMAGED
        if makes >= 0:
            target = container_count
            container_count += 1
            kinds[target] = makes
            depths[target] = 1
            expanded[target] = 1
            shared[target] = 0
        else:
            if base == 0 or stack[base - 1] < first_container:
                return DAMAGED
            target = stack[base - 1] - first_container
            if kinds[target] != changes:
                return DAMAGED
            if shared[target]:
                return CHANGES_SHARED
        if changes == dict_kind and (height - first) % 2:
            return DAMAGED
        depth = depths[target]
        total = expanded[target]
        for i in range(first, height):
            value = stack[i]
            if value == mark:
                return DAMAGED
            is_key = changes == dict_kind and (i - first) % 2 == 0
            if value < first_container:
                if is_key and value == plain_number:
                    number_keys += 1
                total += 1
                continue
            if is_key:
                return CONTAINER_AS_KEY
            total += expanded[value - first_container]
            inner_depth = depths[value - first_container]
            depth = max(depth, inner_depth + 1)
        if number_keys > max_number_keys:
            return CONTAINER_AS_KEY
        if depth > max_depth:
            return TOO_DEEP
        if total > max_expanded:
            return TOO_LARGE
        depths[target] = depth
        expanded[target] = total
        height = base
        if makes >= 0:
            stack[height] = target + first_container
            height += 1
    position_out[0] = size
    return CUT_OFF
