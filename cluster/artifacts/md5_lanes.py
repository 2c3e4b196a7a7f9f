"""MD5 of many equal parts at once: 16 of them, one in each lane of a vector register.

MD5 is sequential, so one sum takes 1.6 s of a core per GiB, more than to fetch it. The parts of a multipart upload are
independent of each other: with AVX-512 sixteen take 0.3 s per GiB. Numba compiles the loop over the lanes once for each
machine (3 s) and keeps the result.

Source: RFC 1321; the functions F and G in the equivalent form that saves an operation.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

LANES = 16
_START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_BLOCK = 64
_u32 = np.uint32


def _inlined(function: Any) -> Any:
    return numba.njit(inline="always")(function)


@_inlined
def _turned(b: Any, t: Any, left: Any) -> Any:
    return _u32(b + _u32((t << _u32(left)) | (t >> _u32(32 - left))))


@_inlined
def _f(a: Any, b: Any, c: Any, d: Any, word: Any, left: Any, key: Any) -> Any:
    return _turned(b, _u32(a + (d ^ (b & (c ^ d))) + word + _u32(key)), left)


@_inlined
def _g(a: Any, b: Any, c: Any, d: Any, word: Any, left: Any, key: Any) -> Any:
    return _turned(b, _u32(a + (c ^ (d & (b ^ c))) + word + _u32(key)), left)


@_inlined
def _h(a: Any, b: Any, c: Any, d: Any, word: Any, left: Any, key: Any) -> Any:
    return _turned(b, _u32(a + (b ^ c ^ d) + word + _u32(key)), left)


@_inlined
def _i(a: Any, b: Any, c: Any, d: Any, word: Any, left: Any, key: Any) -> Any:
    return _turned(b, _u32(a + (c ^ (b | ~d)) + word + _u32(key)), left)


@_inlined
def _round_1(a: Any, b: Any, c: Any, d: Any, w: Any, lane: int) -> Any:
    a = _f(a, b, c, d, w[0, lane], 7, 0xD76AA478)
    d = _f(d, a, b, c, w[1, lane], 12, 0xE8C7B756)
    c = _f(c, d, a, b, w[2, lane], 17, 0x242070DB)
    b = _f(b, c, d, a, w[3, lane], 22, 0xC1BDCEEE)
    a = _f(a, b, c, d, w[4, lane], 7, 0xF57C0FAF)
    d = _f(d, a, b, c, w[5, lane], 12, 0x4787C62A)
    c = _f(c, d, a, b, w[6, lane], 17, 0xA8304613)
    b = _f(b, c, d, a, w[7, lane], 22, 0xFD469501)
    a = _f(a, b, c, d, w[8, lane], 7, 0x698098D8)
    d = _f(d, a, b, c, w[9, lane], 12, 0x8B44F7AF)
    c = _f(c, d, a, b, w[10, lane], 17, 0xFFFF5BB1)
    b = _f(b, c, d, a, w[11, lane], 22, 0x895CD7BE)
    a = _f(a, b, c, d, w[12, lane], 7, 0x6B901122)
    d = _f(d, a, b, c, w[13, lane], 12, 0xFD987193)
    c = _f(c, d, a, b, w[14, lane], 17, 0xA679438E)
    b = _f(b, c, d, a, w[15, lane], 22, 0x49B40821)
    return a, b, c, d


@_inlined
def _round_2(a: Any, b: Any, c: Any, d: Any, w: Any, lane: int) -> Any:
    a = _g(a, b, c, d, w[1, lane], 5, 0xF61E2562)
    d = _g(d, a, b, c, w[6, lane], 9, 0xC040B340)
    c = _g(c, d, a, b, w[11, lane], 14, 0x265E5A51)
    b = _g(b, c, d, a, w[0, lane], 20, 0xE9B6C7AA)
    a = _g(a, b, c, d, w[5, lane], 5, 0xD62F105D)
    d = _g(d, a, b, c, w[10, lane], 9, 0x02441453)
    c = _g(c, d, a, b, w[15, lane], 14, 0xD8A1E681)
    b = _g(b, c, d, a, w[4, lane], 20, 0xE7D3FBC8)
    a = _g(a, b, c, d, w[9, lane], 5, 0x21E1CDE6)
    d = _g(d, a, b, c, w[14, lane], 9, 0xC33707D6)
    c = _g(c, d, a, b, w[3, lane], 14, 0xF4D50D87)
    b = _g(b, c, d, a, w[8, lane], 20, 0x455A14ED)
    a = _g(a, b, c, d, w[13, lane], 5, 0xA9E3E905)
    d = _g(d, a, b, c, w[2, lane], 9, 0xFCEFA3F8)
    c = _g(c, d, a, b, w[7, lane], 14, 0x676F02D9)
    b = _g(b, c, d, a, w[12, lane], 20, 0x8D2A4C8A)
    return a, b, c, d


@_inlined
def _round_3(a: Any, b: Any, c: Any, d: Any, w: Any, lane: int) -> Any:
    a = _h(a, b, c, d, w[5, lane], 4, 0xFFFA3942)
    d = _h(d, a, b, c, w[8, lane], 11, 0x8771F681)
    c = _h(c, d, a, b, w[11, lane], 16, 0x6D9D6122)
    b = _h(b, c, d, a, w[14, lane], 23, 0xFDE5380C)
    a = _h(a, b, c, d, w[1, lane], 4, 0xA4BEEA44)
    d = _h(d, a, b, c, w[4, lane], 11, 0x4BDECFA9)
    c = _h(c, d, a, b, w[7, lane], 16, 0xF6BB4B60)
    b = _h(b, c, d, a, w[10, lane], 23, 0xBEBFBC70)
    a = _h(a, b, c, d, w[13, lane], 4, 0x289B7EC6)
    d = _h(d, a, b, c, w[0, lane], 11, 0xEAA127FA)
    c = _h(c, d, a, b, w[3, lane], 16, 0xD4EF3085)
    b = _h(b, c, d, a, w[6, lane], 23, 0x04881D05)
    a = _h(a, b, c, d, w[9, lane], 4, 0xD9D4D039)
    d = _h(d, a, b, c, w[12, lane], 11, 0xE6DB99E5)
    c = _h(c, d, a, b, w[15, lane], 16, 0x1FA27CF8)
    b = _h(b, c, d, a, w[2, lane], 23, 0xC4AC5665)
    return a, b, c, d


@_inlined
def _round_4(a: Any, b: Any, c: Any, d: Any, w: Any, lane: int) -> Any:
    a = _i(a, b, c, d, w[0, lane], 6, 0xF4292244)
    d = _i(d, a, b, c, w[7, lane], 10, 0x432AFF97)
    c = _i(c, d, a, b, w[14, lane], 15, 0xAB9423A7)
    b = _i(b, c, d, a, w[5, lane], 21, 0xFC93A039)
    a = _i(a, b, c, d, w[12, lane], 6, 0x655B59C3)
    d = _i(d, a, b, c, w[3, lane], 10, 0x8F0CCC92)
    c = _i(c, d, a, b, w[10, lane], 15, 0xFFEFF47D)
    b = _i(b, c, d, a, w[1, lane], 21, 0x85845DD1)
    a = _i(a, b, c, d, w[8, lane], 6, 0x6FA87E4F)
    d = _i(d, a, b, c, w[15, lane], 10, 0xFE2CE6E0)
    c = _i(c, d, a, b, w[6, lane], 15, 0xA3014314)
    b = _i(b, c, d, a, w[13, lane], 21, 0x4E0811A1)
    a = _i(a, b, c, d, w[4, lane], 6, 0xF7537E82)
    d = _i(d, a, b, c, w[11, lane], 10, 0xBD3AF235)
    c = _i(c, d, a, b, w[2, lane], 15, 0x2AD7D2BB)
    b = _i(b, c, d, a, w[9, lane], 21, 0xEB86D391)
    return a, b, c, d


def _steps(words: Any, starts: Any, blocks: int, state: Any) -> None:
    w = np.empty((16, LANES), np.uint32)
    for block in range(blocks):
        for k in range(16):
            for lane in range(LANES):
                w[k, lane] = words[starts[lane] + block * 16 + k]
        for lane in range(LANES):
            a, b, c, d = state[0, lane], state[1, lane], state[2, lane], state[3, lane]
            a, b, c, d = _round_1(a, b, c, d, w, lane)
            a, b, c, d = _round_2(a, b, c, d, w, lane)
            a, b, c, d = _round_3(a, b, c, d, w, lane)
            a, b, c, d = _round_4(a, b, c, d, w, lane)
            state[0, lane] += a
            state[1, lane] += b
            state[2, lane] += c
            state[3, lane] += d


_advance: Any = numba.njit(
    [(numba.types.Array(numba.uint32, 1, "C", readonly=True), numba.int64[::1], numba.int64, numba.uint32[:, ::1])],
    nogil=True,
    cache=True,
    boundscheck=False,
)(_steps)
"""Adds `blocks` blocks of 64 bytes a lane, from `starts` (in words), to the state of each."""


def md5_of_parts(data: memoryview, size: int) -> list[bytes]:
    """The MD5 of each part of `size` bytes, a multiple of 64, of `data`, which holds a whole number of them."""
    words = np.frombuffer(data, np.uint32)
    count = len(data) // size
    found: list[bytes] = []
    for first in range(0, count, LANES):
        lanes = [min(first + lane, count - 1) for lane in range(LANES)]  # of too few parts, the last fills the rest
        found += _sums(words, lanes, size)[: count - first]
    return found


def _sums(words: Any, parts: Sequence[int], size: int) -> list[bytes]:
    state = np.repeat(np.array(_START, np.uint32)[:, None], LANES, axis=1)
    _advance(words, np.array([part * size // 4 for part in parts]), size // _BLOCK, state)
    end = np.frombuffer(b"\x80" + bytes(55) + struct.pack("<Q", 8 * size), np.uint32)
    _advance(end, np.zeros(LANES, np.int64), 1, state)
    return [state[:, lane].tobytes() for lane in range(LANES)]
