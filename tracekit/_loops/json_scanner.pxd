# C types of json_scanner.py, with which Cython compiles it to code that runs without the interpreter lock.

cimport cython

cdef extern from *:
    """
    #include <string.h>

    static inline unsigned long long load_word(const unsigned char *bytes)
    {
        unsigned long long word;
        memcpy(&word, bytes, 8);
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        word = __builtin_bswap64(word);
    #endif
        return word;
    }

    #define trailing_zeros(word) __builtin_ctzll(word)

    static inline unsigned long long fold_product(unsigned long long a, unsigned long long b)
    {
    #ifdef __SIZEOF_INT128__
        unsigned __int128 product = (unsigned __int128)a * b;
        return (unsigned long long)product ^ (unsigned long long)(product >> 64);
    #else
        unsigned long long low = (a & 0xFFFFFFFFULL) * (b & 0xFFFFFFFFULL);
        unsigned long long cross = (a >> 32) * (b & 0xFFFFFFFFULL) + (low >> 32);
        unsigned long long middle = (a & 0xFFFFFFFFULL) * (b >> 32) + (cross & 0xFFFFFFFFULL);
        return (a * b) ^ ((a >> 32) * (b >> 32) + (cross >> 32) + (middle >> 32));
    #endif
    }
    """
    unsigned long long fold_product(unsigned long long a, unsigned long long b) noexcept nogil
    unsigned long long load_word(const unsigned char *bytes) noexcept nogil
    int trailing_zeros(unsigned long long word) noexcept nogil

cdef extern from *:
    """
    #define _NULL (-9223372036854775807LL - 1 + 2147483648LL)
    #define _LARGEST 9223372036854775807LL
    #define _MAX_BEFORE_DIGIT 922337203685477579LL
    #define _32_BITS 0xFFFFFFFFULL
    #define _64_BITS 0xFFFFFFFFFFFFFFFFULL
    #define _MIX 0x9E3779B97F4A7C15ULL
    #define _ONES 0x0101010101010101ULL
    #define _HIGHS 0x8080808080808080ULL
    #define _QUOTES 0x2222222222222222ULL
    #define _BACKSLASHES 0x5C5C5C5C5C5C5C5CULL
    """
    const long long _NULL, _LARGEST, _MAX_BEFORE_DIGIT
    const unsigned long long _32_BITS, _64_BITS, _MIX
    const unsigned long long _ONES, _HIGHS, _QUOTES, _BACKSLASHES

# These stand in json_scanner.py too, for the case that it is not compiled.
cdef enum:
    _WIDTH = 32
    _FIRST_TEXT = 21
    _TEXT_COLUMNS = 11
    _ID = 0
    _TS = 1
    _DUR = 2
    _TID = 4
    _BYTES = 11
    _EVENT = 20
    _NAME = 21
    _CAT = 22
    _CONCRETE = 30
    _PHASE = 32
    _ARGS = 33
    _IGNORED = 34
    _NO_TARGET = 35
    _CLOSED = 36
    _EVENT_LEVEL = 0
    _ARGS_LEVEL = 1
    _MEMORY_LEVEL = 2
    _MORE = 0
    _END = 1
    _PARTIAL = 2
    _ROWS_FULL = 3
    _TEXT_FULL = 4
    _PYTHON_FUNCTION = 0
    _MEMORY = 1
    _STREAM = 2
    _MODULE_CALL = 3
    _TORCH = 4
    _CUT = -1
    _BROKEN = -2
    _LONGEST_KEY = 32
    _UNKNOWN_PHASE = 1
    _CONTEXTS = 36
    _START_CONTEXT = 108
    _GAPS_PER_CONTEXT = 4
    _SHORTEST_GAP = 8
    _LONGEST_GAP = 64
    _FIRST_WORD = 0
    _START = 1
    _LENGTH = 2
    _TARGET = 3
    _LEVEL = 4

@cython.final
cdef class Scanner:
    cdef int[:, ::1] targets
    cdef long long[:, ::1] tile
    cdef long long[:, ::1] columns
    cdef long long[:, ::1] bounds
    cdef long long[:, ::1] memory_rows
    cdef long long[::1] phases
    cdef unsigned long long[:, ::1] gaps

    cdef unsigned long long seed, second_seed
    cdef long long unasked_end

    # The dictionary. The text of code k is heap[starts[k]:starts[k + 1]]; slots is a hash table with open addressing, whose
    # entries hold the upper half of the hash and the code plus one.
    cdef unsigned long long[::1] slots
    cdef long long[::1] starts
    cdef unsigned char[::1] heap
    cdef readonly long long text_count

    # Counts since ``reset``.
    cdef readonly long long events
    cdef readonly long long complete
    cdef readonly long long bad
    cdef readonly long long first_bad
    cdef readonly long long bad_values
    cdef readonly long long first_bad_value
    cdef readonly long long python_frames

    # The scan: what it reads, where it stopped, and how many rows it filled.
    cdef const unsigned char[::1] buffer
    cdef Py_ssize_t end
    cdef bint is_last
    cdef bint keep_stacks
    cdef readonly Py_ssize_t position
    cdef readonly Py_ssize_t row_count
    cdef readonly Py_ssize_t memory_count
    cdef Py_ssize_t tile_rows
    cdef unsigned long long tile_columns  # one bit per column that rows of the tile may have a value in
    cdef long long reread_budget  # bytes that damaged events may still make it read twice
    cdef Py_ssize_t broken_at

    # The event read last; -3 stands for an exception wherever an index or a status is returned.
    cdef int next_target, next_level
    cdef int phase
    cdef long long bad_values_in_event
    cdef bint has_bad_time
    cdef long long number

    cdef int _walk(self, Py_ssize_t i) except -3 nogil
    cdef bint _may_follow_event(self, Py_ssize_t i) except -3 nogil
    cdef bint _is_key(self, Py_ssize_t i) except -3 nogil
    cdef Py_ssize_t _broken(self, Py_ssize_t i) except -3 nogil
    cdef Py_ssize_t _step_over_damage(self, Py_ssize_t i, Py_ssize_t failure) except -3 nogil
    cdef int _count_bad(self) except -3 nogil
    cdef Py_ssize_t _next_event(self, Py_ssize_t i) except -3 nogil
    cdef Py_ssize_t _other_value_end(self, Py_ssize_t i) except -3 nogil
    cdef Py_ssize_t _list_end(self, Py_ssize_t i) except -3 nogil
    cdef int _keep_event(self, Py_ssize_t i) except -3 nogil
    cdef int _append_row(self, bint has_time) except -3 nogil
    cdef bint _is_asked(self, long long code, Py_ssize_t first, Py_ssize_t last) except -3 nogil
    cdef int _keep_memory(self, Py_ssize_t i) except -3 nogil
    cdef int _flush_tile(self) except -3 nogil
    cdef Py_ssize_t _read_event(self, Py_ssize_t start, int args_level) except -3 nogil
    cdef Py_ssize_t _read_value(self, Py_ssize_t i, int target) except -3 nogil
    cdef int _phase(self, Py_ssize_t first, Py_ssize_t last) except -3 nogil
    cdef bint _is_text(self, int target) noexcept nogil
    cdef int _set_text(self, int column, Py_ssize_t first, Py_ssize_t last) except -3 nogil
    cdef Py_ssize_t _text_end(self, int column) except -3 nogil
    cdef bint _has_text(self, int column, Py_ssize_t code) except -3 nogil
    cdef bint _is_module_call(self) except -3 nogil
    cdef int _target(self, Py_ssize_t first, Py_ssize_t last, int level) except -3 nogil
    cdef Py_ssize_t _lookup_escaped(self, Py_ssize_t first, Py_ssize_t last) except -3 nogil
    cdef Py_ssize_t _escape_length(self, Py_ssize_t i) except -3 nogil
    cdef int _unescape(self, Py_ssize_t i, Py_ssize_t last) except -3 nogil
    cdef Py_ssize_t _intern(self, Py_ssize_t first, Py_ssize_t last) except -3 nogil
    cdef Py_ssize_t _lookup(self, Py_ssize_t first, Py_ssize_t last, unsigned long long hashed) except -3 nogil
    cdef int _insert(self, unsigned long long hashed, Py_ssize_t code) except -3 nogil
    cdef bint _equals(self, Py_ssize_t first, Py_ssize_t last, Py_ssize_t code) except -3 nogil
    cdef unsigned long long _word(self, Py_ssize_t i) noexcept nogil
    cdef unsigned long long _mix(self, unsigned long long a, unsigned long long b) noexcept nogil
    cdef unsigned long long _hash(self, Py_ssize_t first, Py_ssize_t last) noexcept nogil
    cdef Py_ssize_t _find(self, unsigned char wanted, Py_ssize_t i) except -3 nogil
    cdef Py_ssize_t _skip_space(self, Py_ssize_t i) except -3 nogil
    cdef Py_ssize_t _string_end(self, Py_ssize_t first) except -3 nogil
    cdef Py_ssize_t _skip_nested(self, Py_ssize_t i) except -3 nogil
    cdef Py_ssize_t _scalar_end(self, Py_ssize_t i) except -3 nogil
    cdef bint _is_json_scalar(self, Py_ssize_t i) except -3 nogil
    cdef int _read_quoted_number(self, Py_ssize_t first, Py_ssize_t last, int column) except -3 nogil
    cdef Py_ssize_t _read_number(self, Py_ssize_t i, Py_ssize_t end, bint in_thousandths) except -3 nogil
    cdef Py_ssize_t _find_gap(self, Py_ssize_t context, Py_ssize_t i) except -3 nogil
    cdef int _remember_gap(self, Py_ssize_t context, Py_ssize_t start, Py_ssize_t length) except -3 nogil
    cdef unsigned long long _zero_bytes(self, unsigned long long word) noexcept nogil
    cdef Py_ssize_t _first_byte(self, unsigned long long hits) noexcept nogil
    cdef int _clear_row(self, Py_ssize_t row) except -3 nogil
    cdef bint _ends_scalar(self, unsigned char c) noexcept nogil
    cdef Py_ssize_t _next_value(self, Py_ssize_t i, bint is_first_key, int level, int args_level) except -3 nogil
