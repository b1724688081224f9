# The compiled form of bits.py: what loops read, write and search, within the bounds of a buffer.
# These functions alone take the address of a byte, after a check of all the bytes that they use.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define rmq_little(x) __builtin_bswap64(x)
    #else
    #define rmq_little(x) (x)
    #endif
    static inline uint64_t rmq_load(const uint8_t *p) {
        uint64_t v; memcpy(&v, p, 8); return rmq_little(v);
    }
    static inline void rmq_store(uint8_t *p, uint64_t v) {
        v = rmq_little(v); memcpy(p, &v, 8);
    }
    #define rmq_zeros(x) __builtin_ctzll(x)
    #define rmq_swap(x) __builtin_bswap64(x)
    #define rmq_prefetch(p) __builtin_prefetch(p)
    """
    uint64_t _load "rmq_load"(const uint8_t *p) noexcept nogil
    void _store "rmq_store"(uint8_t *p, uint64_t v) noexcept nogil
    int zeros_behind "rmq_zeros"(uint64_t x) noexcept nogil
    uint64_t swapped "rmq_swap"(uint64_t x) noexcept nogil

ctypedef const uint8_t[::1] Bytes
ctypedef uint8_t[::1] Room
ctypedef const int32_t[::1] Ints
ctypedef int32_t[::1] IntRoom
ctypedef const int64_t[::1] Longs
ctypedef int64_t[::1] LongRoom
ctypedef Py_ssize_t Place
ctypedef int64_t Long
ctypedef uint64_t Word


cdef inline int outside(Py_ssize_t at, Py_ssize_t size, Py_ssize_t room) except -1 nogil:
    with gil:
        raise IndexError(f"bytes {at} to {at + size} are not inside of a buffer of {room}")

cdef inline uint64_t word(Bytes raw, Py_ssize_t at) except? 0x5AFE nogil:
    cdef uint64_t found
    cdef Py_ssize_t place
    if 0 <= at <= raw.shape[0] - 8:
        return _load(&raw[at])
    found = raw[at]
    for place in range(at + 1, raw.shape[0]):
        found |= <uint64_t>raw[place] << (8 * (place - at))
    return found

cdef inline int64_t i64(Bytes raw, Py_ssize_t at) except? -77 nogil:
    return <int64_t>swapped(word(raw, at))

cdef inline int32_t i32(Bytes raw, Py_ssize_t at) except? -77 nogil:
    return <int32_t>(swapped(word(raw, at)) >> 32)

cdef inline int32_t i16(Bytes raw, Py_ssize_t at) except? -77 nogil:
    return <int32_t>(<int64_t>swapped(word(raw, at)) >> 48)

cdef inline int put_i64(Room out, Py_ssize_t at, int64_t value) except -1 nogil:
    if not 0 <= at <= out.shape[0] - 8:
        outside(at, 8, out.shape[0])
    _store(&out[at], swapped(<uint64_t>value))
    return 0

cdef inline int put_i32(Room out, Py_ssize_t at, int64_t value) except -1 nogil:
    cdef uint32_t big = <uint32_t>(swapped(<uint64_t>value) >> 32)
    if not 0 <= at <= out.shape[0] - 4:
        outside(at, 4, out.shape[0])
    memcpy(&out[at], &big, 4)
    return 0

cdef inline int put_i16(Room out, Py_ssize_t at, int64_t value) except -1 nogil:
    out[at] = <uint8_t>(value >> 8)
    out[at + 1] = <uint8_t>value
    return 0

cdef inline Py_ssize_t find(Bytes raw, Py_ssize_t at, Py_ssize_t stop, int byte) except -1 nogil:
    cdef uint64_t wanted = 0x0101010101010101ULL * <uint64_t>byte
    cdef uint64_t hits
    while at < stop:
        hits = word(raw, at) ^ wanted
        hits = (hits - 0x0101010101010101ULL) & ~hits & 0x8080808080808080ULL
        if hits:
            at += zeros_behind(hits) >> 3
            return at if at < stop else stop
        at += 8
    return stop

cdef inline Py_ssize_t copy(
    Bytes raw, Py_ssize_t at, Py_ssize_t size, Room out, Py_ssize_t to
) except -1 nogil:
    cdef Py_ssize_t done = 0
    if size < 0 or at < 0 or size > raw.shape[0] - at:
        outside(at, size, raw.shape[0])
    if to < 0 or size > out.shape[0] - to:
        outside(to, size, out.shape[0])
    if size <= 32 and size + 8 <= raw.shape[0] - at and size + 8 <= out.shape[0] - to:
        while done < size:
            _store(&out[to + done], _load(&raw[at + done]))
            done += 8
    elif size:
        memcpy(&out[to], &raw[at], size)
    return to + size

cdef inline bint same(
    Bytes one, Py_ssize_t at, Bytes other, Py_ssize_t place, Py_ssize_t size
) except -1 nogil:
    if size < 0 or at < 0 or size > one.shape[0] - at:
        outside(at, size, one.shape[0])
    if place < 0 or size > other.shape[0] - place:
        outside(place, size, other.shape[0])
    return not size or memcmp(&one[at], &other[place], size) == 0

cdef inline int32_t signed32(uint64_t value) noexcept nogil:
    return <int32_t>value
