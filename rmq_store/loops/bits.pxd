# The compiled form of bits.py: what loops read, write and search, within the bounds of a buffer.
# These functions alone take the address of a byte, after a check of all the bytes that they use.
from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove, memset

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
    /* Names of properties as words: TAGS, KEYS, UNIQ_KEY and INNER_MULTI_QUEUE_OFFSET. */
    #define rmq_tags 0x53474154ULL
    #define rmq_keys 0x5359454BULL
    #define rmq_uniq_key 0x59454B5F51494E55ULL
    #define rmq_other_queues_1 0x554D5F52454E4E49ULL
    #define rmq_other_queues_2 0x554555515F49544CULL
    #define rmq_other_queues_3 0x54455346464F5F45ULL
    #define rmq_zeros(x) __builtin_ctzll(x)
    #define rmq_swap(x) __builtin_bswap64(x)
    /* A bit for each byte of a word that is the given one. */
    static inline uint64_t rmq_equal(uint64_t word, uint64_t byte) {
        uint64_t x = word ^ (byte * 0x0101010101010101ULL);
        x = ~(((x & 0x7F7F7F7F7F7F7F7FULL) + 0x7F7F7F7F7F7F7F7FULL) | x | 0x7F7F7F7F7F7F7F7FULL);
        return ((x >> 7) * 0x0102040810204080ULL) >> 56;
    }
    /* 64 bytes, all loaded before the first is stored. And a bit for each of 64 bytes that is 1 or 2, with
       one in `other` for each that is not ASCII. */
    #ifdef __SSE2__
    #include <emmintrin.h>
    static inline void rmq_copy64(uint8_t *to, const uint8_t *from) {
        __m128i a = _mm_loadu_si128((const __m128i *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(from + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(from + 48));
        _mm_storeu_si128((__m128i *)to, a);
        _mm_storeu_si128((__m128i *)(to + 16), b);
        _mm_storeu_si128((__m128i *)(to + 32), c);
        _mm_storeu_si128((__m128i *)(to + 48), d);
    }
    static inline uint64_t rmq_ones_and_twos(const uint8_t *p, uint64_t *other) {
        __m128i one = _mm_set1_epi8(1), two = _mm_set1_epi8(2), v, found;
        uint64_t bits = 0, beside = 0;
        for (int at = 0; at < 64; at += 16) {
            v = _mm_loadu_si128((const __m128i *)(p + at));
            found = _mm_or_si128(_mm_cmpeq_epi8(v, one), _mm_cmpeq_epi8(v, two));
            bits |= (uint64_t)_mm_movemask_epi8(found) << at;
            beside |= (uint64_t)_mm_movemask_epi8(v) << at;
        }
        *other = beside;
        return bits;
    }
    #else
    typedef struct { uint64_t w[8]; } rmq_line;
    static inline void rmq_copy64(uint8_t *to, const uint8_t *from) {
        rmq_line v; memcpy(&v, from, 64); memcpy(to, &v, 64);
    }
    static inline uint64_t rmq_ones_and_twos(const uint8_t *p, uint64_t *other) {
        uint64_t bits = 0;
        *other = 0;
        for (int at = 0; at < 64; at += 8) {
            uint64_t word = rmq_load(p + at);
            bits |= (rmq_equal(word, 1) | rmq_equal(word, 2)) << at;
            *other |= (((word & 0x8080808080808080ULL) >> 7) * 0x0102040810204080ULL >> 56) << at;
        }
        return bits;
    }
    #endif
    """
    uint64_t TAGS "rmq_tags"
    uint64_t KEYS "rmq_keys"
    uint64_t UNIQ_KEY "rmq_uniq_key"
    uint64_t OTHER_QUEUES_1 "rmq_other_queues_1"
    uint64_t OTHER_QUEUES_2 "rmq_other_queues_2"
    uint64_t OTHER_QUEUES_3 "rmq_other_queues_3"
    uint64_t _load "rmq_load"(const uint8_t *p) noexcept nogil
    void _store "rmq_store"(uint8_t *p, uint64_t v) noexcept nogil
    void _prefetch "__builtin_prefetch"(const void *p) noexcept nogil
    int zeros_behind "rmq_zeros"(uint64_t x) noexcept nogil
    uint64_t _ones_and_twos "rmq_ones_and_twos"(const uint8_t *p, uint64_t *other) noexcept nogil
    void _copy64 "rmq_copy64"(uint8_t *to, const uint8_t *at) noexcept nogil
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


# Of the format, as in format/byte_layout.py; a test compares them.
cdef enum:
    MAGIC_V1 = -626843481
    MAGIC_V2 = -626843477
    MIN_RECORD_SIZE = 91
    HEAD_SIZE = 88
    V6_EXTRA = 12
    BORN_HOST_AT = 48
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NAME_VALUE_SEPARATOR = 1
    PROPERTY_SEPARATOR = 2
    CRC_MASK = 0x7FFFFFFF

# Of the loops of properties (property_items.py); constants of C, so that it computes with them.
cdef enum:
    PLACES = 10
    OTHERS = 8
    ITEM = 4
    NAME = 0
    NAME_SIZE = 1
    VALUE = 2
    VALUE_SIZE = 3
    OTHER_QUEUES_SIZE = 24
    LAYOUT = 8
    LAYOUT_SLOTS = 1024
    LAYOUT_FIRST = 0
    LAYOUT_ITEMS = 1
    LAYOUT_VALUES = 2

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

cdef inline Py_ssize_t find(Bytes raw, Py_ssize_t at, Py_ssize_t stop, int byte) except? -1 nogil:
    cdef uint64_t wanted = 0x0101010101010101ULL * <uint64_t>byte
    cdef uint64_t hits
    if at < stop and stop > raw.shape[0]:
        outside(stop, 0, raw.shape[0])
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
    cdef Py_ssize_t done = 64
    cdef Py_ssize_t whole = (size + 63) & -64 if size > 0 else 64
    if size < 0 or at < 0 or size > raw.shape[0] - at:
        outside(at, size, raw.shape[0])
    if to < 0 or size > out.shape[0] - to:
        outside(to, size, out.shape[0])
    # Most texts are short: a call for each costs more than its work, and guesses their sizes.
    if size <= 256 and whole <= raw.shape[0] - at and whole <= out.shape[0] - to:
        _copy64(&out[to], &raw[at])
        while done < size:
            _copy64(&out[to + done], &raw[at + done])
            done += 64
    elif size:
        memmove(&out[to], &raw[at], size)
    return to + size

cdef inline uint64_t first_bytes(uint64_t found, Py_ssize_t size) noexcept nogil:
    # Without a branch for the size, which would be a guess.
    cdef int kept = 8 if size > 8 else <int>size
    if size <= 0:
        return 0
    return found & (0xFFFFFFFFFFFFFFFFULL >> (64 - 8 * kept))

cdef inline bint same(
    Bytes one, Py_ssize_t at, Bytes other, Py_ssize_t place, Py_ssize_t size
) except -1 nogil:
    if size < 0 or at < 0 or size > one.shape[0] - at:
        outside(at, size, one.shape[0])
    if place < 0 or size > other.shape[0] - place:
        outside(place, size, other.shape[0])
    # Most are names: a call for each costs more than its work.
    if size <= 16 and at <= one.shape[0] - 8 and place <= other.shape[0] - 8:
        if size <= 8:
            return first_bytes(_load(&one[at]) ^ _load(&other[place]), size) == 0
        return (
            _load(&one[at]) == _load(&other[place])
            and _load(&one[at + size - 8]) == _load(&other[place + size - 8])
        )
    return not size or memcmp(&one[at], &other[place], size) == 0

# --- added for records and their texts ---

ctypedef int64_t[:, ::1] LongTable
ctypedef int32_t[:, ::1] IntTable

cdef inline uint64_t hex_of(uint32_t value) noexcept nogil:
    # Four bits to each byte, then to their digits, all eight at once.
    cdef uint64_t x = value
    x = ((x & 0xFFFF0000ULL) << 16) | (x & 0xFFFFULL)
    x = ((x & 0x0000FF000000FF00ULL) << 8) | (x & 0x000000FF000000FFULL)
    x = ((x & 0x00F000F000F000F0ULL) << 4) | (x & 0x000F000F000F000FULL)
    x += 0x3030303030303030ULL + 7 * (((x + 0x0606060606060606ULL) >> 4) & 0x0101010101010101ULL)
    return swapped(x)

cdef inline Py_ssize_t put_hex(Room out, Py_ssize_t at, int64_t value) except -1 nogil:
    if not 0 <= at <= out.shape[0] - 16:
        outside(at, 16, out.shape[0])
    _store(&out[at], hex_of(<uint32_t>(<uint64_t>value >> 32)))
    _store(&out[at + 8], hex_of(<uint32_t>value))
    return at + 16

cdef inline uint64_t mixed(uint64_t one, uint64_t other) noexcept nogil:
    one ^= (other << 29) | (other >> 35)
    return (one * 0x9E3779B97F4A7C15ULL) >> 40

cdef inline Py_ssize_t separators(
    Bytes raw, Py_ssize_t at, Py_ssize_t stop, LongRoom places
) except -1 nogil:
    # A bit for each of 64 bytes: nothing is searched, so that few branches depend on their places. The
    # bytes behind the string are looked at too, and their bits cleared.
    cdef Py_ssize_t count = 0
    cdef uint64_t found, other, kept, seen = 0
    cdef const uint8_t *some
    cdef int64_t *out
    cdef int place
    cdef uint8_t last[64]
    if at < 0 or stop > raw.shape[0]:
        outside(at, stop - at, raw.shape[0])
    if stop <= at:
        return 0
    if stop - at > places.shape[0]:
        outside(0, stop - at, places.shape[0])
    out = &places[0]
    while at < stop:
        if at <= raw.shape[0] - 64:
            some = &raw[at]
        else:
            memset(last, 0, 64)
            memcpy(last, &raw[at], stop - at)
            some = last
        found = _ones_and_twos(some, &other)
        kept = 0xFFFFFFFFFFFFFFFFULL >> (64 - stop + at if stop - at < 64 else 0)
        seen |= other & kept
        found &= kept
        while found:
            place = zeros_behind(found)
            out[count] = (at + place) << 1 | (some[place] & 2) >> 1
            count += 1
            found &= found - 1
        at += 64
    return count << 1 | (seen != 0)

cdef inline int prefetch(Bytes raw, Py_ssize_t at, Py_ssize_t size) except -1 nogil:
    while size > 0 and 0 <= at < raw.shape[0]:
        _prefetch(&raw[at])
        at += 64
        size -= 64
    return 0

cdef inline int prefetch_number(IntRoom numbers, Py_ssize_t at) except -1 nogil:
    if 0 <= at < numbers.shape[0]:
        _prefetch(&numbers[at])
    return 0

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char *at, Py_ssize_t size, int flags)
    object PyBytes_FromStringAndSize(const char *at, Py_ssize_t size)

cdef inline object view_of(Bytes raw, Py_ssize_t at, Py_ssize_t size):
    # Half the time of a slice of a memoryview. Nobody may keep it. A copy of few bytes takes half of that.
    if size < 0 or at < 0 or size > raw.shape[0] - at:
        outside(at, size, raw.shape[0])
    if size == 0:
        return b""
    if size <= 512:
        return PyBytes_FromStringAndSize(<const char *>&raw[at], size)
    return PyMemoryView_FromMemory(<char *>&raw[at], size, 0x100)

cdef inline int32_t signed32(uint64_t value) noexcept nogil:
    return <int32_t>value

ctypedef uint32_t (*_Sum)(uint32_t before, const uint8_t *at, size_t size) noexcept nogil

cdef inline int64_t sum_of(
    int64_t function, Bytes raw, Py_ssize_t at, Py_ssize_t size
) except -1 nogil:
    if size < 0 or at < 0 or size > raw.shape[0] - at:
        outside(at, size, raw.shape[0])
    return (<_Sum><intptr_t>function)(0, &raw[at], size) if size else 0
