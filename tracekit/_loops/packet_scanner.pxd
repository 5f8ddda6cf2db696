# C types of packet_scanner.py.

cimport cython

@cython.final
cdef class PacketScanner:
    cdef unsigned long long seed
    cdef int[:, ::1] targets
    cdef long long[:, ::1] rows
    cdef long long[:, ::1] ends
    cdef long long[:, ::1] state
    cdef long long[::1] types

    # The dictionary. The text of code k is heap[starts[k]:starts[k + 1]]; slots is a hash table with open addressing, whose
    # entries hold the upper half of the hash and the code plus one. is_message tells whole messages from texts.
    cdef unsigned long long[::1] slots
    cdef long long[::1] starts
    cdef unsigned char[::1] heap
    cdef unsigned char[::1] is_message
    cdef readonly long long text_count

    # The scan: what it reads, where it stopped, how many rows it filled, and counts of what it has seen.
    cdef const unsigned char[::1] buffer
    cdef readonly Py_ssize_t position
    cdef readonly long long needed
    cdef readonly Py_ssize_t row_count
    cdef readonly Py_ssize_t end_count
    cdef readonly Py_ssize_t state_count
    cdef readonly long long packets
    cdef readonly long long bad
    cdef readonly long long unknown
    cdef readonly long long unnamed_arguments

    # The packet and the field read last; -3 stands for an exception wherever an index or a status is returned.
    cdef long long time
    cdef long long clock
    cdef long long writer
    cdef unsigned long long tag
    cdef unsigned long long value
    cdef long long number
    cdef Py_ssize_t first

    cdef int _read_packet(self, Py_ssize_t first, Py_ssize_t last) except -3
    cdef int _read_track_event(self, Py_ssize_t first, Py_ssize_t last) except -3
    cdef int _read_stage(self, Py_ssize_t first, Py_ssize_t last) except -3
    cdef int _read_argument(self, Py_ssize_t first, Py_ssize_t last, int level) except -3
    cdef int _read_extra(self, Py_ssize_t first, Py_ssize_t last) except -3
    cdef int _keep_argument(self, int target, int value, long long number, Py_ssize_t text, Py_ssize_t text_end, Py_ssize_t first, Py_ssize_t last) except -3
    cdef int _keep_end(self, long long track) except -3
    cdef int _keep_row(self) except -3
    cdef int _clear_row(self) except -3
    cdef Py_ssize_t _field(self, Py_ssize_t i, Py_ssize_t last) except -3
    cdef Py_ssize_t _skip(self, Py_ssize_t i, Py_ssize_t last, int kind) except -3
    cdef long long _signed(self, unsigned long long value) noexcept
    cdef Py_ssize_t _varint(self, Py_ssize_t i, Py_ssize_t last) noexcept
    cdef long long _decimal(self, Py_ssize_t first, Py_ssize_t last) noexcept
    cdef int _target(self, Py_ssize_t first, Py_ssize_t last, int level) except -3
    cdef Py_ssize_t _intern(self, Py_ssize_t first, Py_ssize_t last, unsigned char is_message) except -3
    cdef Py_ssize_t _lookup(self, Py_ssize_t first, Py_ssize_t last, unsigned char is_message, unsigned long long hashed) except -3
    cdef int _insert(self, unsigned long long hashed, Py_ssize_t code) except -3
    cdef bint _equals(self, Py_ssize_t first, Py_ssize_t last, Py_ssize_t code) except -3
    cdef unsigned long long _word(self, Py_ssize_t i) noexcept
    cdef unsigned long long _hash(self, Py_ssize_t first, Py_ssize_t last, unsigned char is_message) noexcept
    cdef unsigned long long _mix(self, unsigned long long a) noexcept
