"""Counts the values of a JSON text and how deep they are nested, before anything is built of them. Exact: what stands
inside strings does not count.

It reads bytes, not JSON: whether the text is valid is for the parser to say, but a valid one has no more values and is
no deeper than found here. The method is simdjson's (Langdale and Lemire, "Parsing gigabytes of JSON per second", VLDB
Journal 2019, section 3.1) with numpy in place of vector instructions: a bit for each byte, and arithmetic on the bits.
It takes about 1 ns a byte and, since it goes slice by slice, no memory to speak of.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_SLICE_BYTES = 1 << 18
_WORD = 64
_ODD = int.from_bytes(b"\xaa" * (_SLICE_BYTES // 8), "little")
_SHIFTS = tuple(np.uint64(shift) for shift in (1, 2, 4, 8, 16, 32))
_COMMA, _QUOTE, _BACKSLASH, _OPEN, _CLOSE, _SPACE = (ord(char) for char in ',"\\{} ')
_TO_BRACE = np.uint8(0x20)
"""The bit by which `[` differs from `{`, and `]` from `}`; no other byte becomes a brace by it."""

_Bytes = npt.NDArray[np.uint8]
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Structure:
    """`values`: commas and opening brackets, so at least as many as there are elements, members and containers.
    `depth`: of the deepest one, and up to 32 more while it is within the bound that was asked for.
    """

    values: int
    depth: int


def structure_of(body: bytes, max_values: int, max_depth: int) -> Structure:
    """The structure of a JSON text, or of its beginning where that has more than `max_values` values or is deeper than
    `max_depth`."""
    scan = _Scan(max_depth)
    text = np.frombuffer(body, np.uint8)
    for start in range(0, len(text), _SLICE_BYTES):
        scan.feed(text[start : start + _SLICE_BYTES])
        if scan.values > max_values or scan.depth > max_depth:
            break
    return Structure(scan.values, scan.depth)


class _Scan:
    """What is carried from slice to slice. A slice has whole words, but for the last one."""

    def __init__(self, max_depth: int) -> None:
        self.values = 0
        self.depth = 0
        self._max_depth = max_depth
        self._open = 0
        self._inside = np.uint64(0)
        """1: the next byte is inside a string."""
        self._escaped = 0
        """1: the next byte is escaped."""

    def feed(self, part: _Bytes) -> None:
        if len(part) % _WORD:
            part = np.concatenate([part, np.full(-len(part) % _WORD, _SPACE, np.uint8)])
        outside = ~self._inside_strings(self._quotes(part))
        folded = part | _TO_BRACE
        opens = _bits(folded == _OPEN) & outside
        self.values += _ones(_bits(part == _COMMA) & outside)
        if opens.any() or self._open:
            self.values += _ones(opens)
            self._note_depth(opens, _bits(folded == _CLOSE) & outside)

    def _quotes(self, part: _Bytes) -> _Words:
        """The quotation marks that are not escaped."""
        quotes = part == _QUOTE
        backslashes = part == _BACKSLASH
        if not self._escaped and not backslashes.any():
            return _bits(quotes)
        # simdjson's way to find the escaped bytes: a subtraction carries along each run of backslashes, and what it
        # leaves tells odd from even ends.
        every = (1 << len(part)) - 1
        marks = _as_int(backslashes)
        escapes = marks & ~self._escaped
        ends = ((((escapes << 1) & every) | (_ODD & every)) - escapes) ^ (_ODD & every)
        escaped = ends ^ (marks | self._escaped)
        self._escaped = (ends & marks) >> (len(part) - 1) & 1
        unescaped = _as_int(quotes) & ~escaped & every
        return np.frombuffer(unescaped.to_bytes(len(part) // 8, "little"), np.uint64)

    def _inside_strings(self, quotes: _Words) -> _Words:
        """The bytes inside strings, the opening quotation mark among them: those with an odd number of marks up to
        there."""
        inside = quotes.copy()
        for shift in _SHIFTS:
            inside ^= inside << shift
        at_end = np.bitwise_xor.accumulate(inside >> np.uint64(_WORD - 1))
        at_start = np.concatenate([np.zeros(1, np.uint64), at_end[:-1]]) ^ self._inside
        self._inside ^= at_end[-1]
        all_inside: _Words = np.uint64(0) - at_start
        return inside ^ all_inside

    def _note_depth(self, opens: _Words, closes: _Words) -> None:
        ended = np.bitwise_count(closes).astype(np.int64)
        after = self._open + np.cumsum(np.bitwise_count(opens) - ended)
        if int((after + ended).max()) > self._max_depth:  # perhaps: all the opening ones of a word may not come first
            steps = np.unpackbits(opens.view(np.uint8), bitorder="little").astype(np.int8)
            steps -= np.unpackbits(closes.view(np.uint8), bitorder="little").astype(np.int8)
            self.depth = max(self.depth, self._open + int(np.cumsum(steps[steps != 0], dtype=np.int64).max(initial=0)))
        else:
            self.depth = max(self.depth, int((after + ended).max()))
        self._open = int(after[-1])


def _bits(mask: npt.NDArray[np.bool_]) -> _Words:
    words: _Words = np.packbits(mask, bitorder="little").view(np.uint64)
    return words


def _as_int(mask: npt.NDArray[np.bool_]) -> int:
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def _ones(words: _Words) -> int:
    return int(np.bitwise_count(words).sum())
