"""MD5 of many equal parts at once: 16 of them, one in each lane of a vector register.

MD5 is sequential, so one sum takes 1.6 s of a core per GiB, more than to fetch it. The parts of a multipart upload are
independent of each other: with AVX-512 sixteen take about 0.2 s per GiB. The step is written in LLVM's vectors of 16
words, which LLVM fits to the registers that the machine has; numba compiles it once for each machine and keeps it.

Source: RFC 1321; the functions F and G in the equivalent form that saves an operation.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
_START = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476)
_BLOCK = 64
_TURNS = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))
"""Of each of the four rounds, by how many bits its steps rotate."""
_FACTORS = ((1, 0), (5, 1), (3, 5), (7, 0))
"""Of each round: its step k adds the word (factor * k + offset) modulo 16."""
_WORD = ir.IntType(32)
_VECTOR = ir.VectorType(_WORD, LANES)


def _of(value: int) -> Any:
    """That number in each lane."""
    return ir.Constant(_VECTOR, [value] * LANES)


def _mixed(builder: Any, number: int, b: Any, c: Any, d: Any) -> Any:
    """The round's function: F, G, H or I."""
    if number == 0:
        return builder.xor(d, builder.and_(b, builder.xor(c, d)))
    if number == 1:
        return builder.xor(c, builder.and_(d, builder.xor(b, c)))
    if number == 2:
        return builder.xor(builder.xor(b, c), d)
    return builder.xor(c, builder.or_(b, builder.not_(d)))


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Row k of the result holds word k of each lane: blocks of 8, 4, 2 and 1 change places."""
    for size in (8, 4, 2, 1):
        for first in (row for row in range(LANES) if not row & size):
            upper, lower = rows[first], rows[first + size]
            left = [k if not k & size else LANES + k - size for k in range(LANES)]
            right = [k + size if not k & size else LANES + k for k in range(LANES)]
            for row, picked in ((first, left), (first + size, right)):
                mask = ir.Constant(ir.VectorType(_WORD, LANES), picked)
                rows[row] = builder.shuffle_vector(upper, lower, mask)
    return rows


def _block_of_each(builder: Any, words: Any, starts: Any, offset: Any, state: Any) -> None:
    """Adds 64 bytes of each lane, at its start plus `offset` words, to the four vectors at `state`."""
    rows = []
    for lane in range(LANES):
        start = builder.load(builder.gep(starts, [ir.Constant(offset.type, lane)]))
        at = builder.gep(words, [builder.add(start, offset)])
        rows.append(builder.load(builder.bitcast(at, _VECTOR.as_pointer()), align=4))
    message = _transposed(builder, rows)
    places = [
        builder.bitcast(builder.gep(state, [ir.Constant(offset.type, LANES * k)]), _VECTOR.as_pointer())
        for k in range(4)
    ]
    before = [builder.load(place, align=4) for place in places]
    a, b, c, d = before
    for step in range(64):
        number, k = divmod(step, 16)
        factor, first = _FACTORS[number]
        key = int(abs(math.sin(step + 1)) * 2**32)
        total = builder.add(builder.add(a, message[(factor * k + first) % 16]), _of(key))
        total = builder.add(total, _mixed(builder, number, b, c, d))
        turn = _TURNS[number][k % 4]
        turned = builder.or_(builder.shl(total, _of(turn)), builder.lshr(total, _of(32 - turn)))
        a, b, c, d = d, builder.add(b, turned), b, c
    for place, old, new in zip(places, before, (a, b, c, d), strict=True):
        builder.store(builder.add(old, new), place, align=4)


@intrinsic  # type: ignore[untyped-decorator]
def _advanced(typing: Any, words: Any, starts: Any, blocks: Any, state: Any) -> Any:
    """For numba: `_block_of_each` for one block after the other."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, first, sums = (
            context.make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 1, 3)
        )
        with cgutils.for_range(builder, arguments[2]) as loop:
            offset = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
            _block_of_each(builder, data, first, offset, sums)
        return context.get_dummy_value()

    return numba.types.none(words, starts, blocks, state), generate


def _steps(words: Any, starts: Any, blocks: int, state: Any) -> None:
    _advanced(words, starts, blocks, state)


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
