"""Spans of time as pairs of whole nanoseconds, from the first to before the second. Pure.

All functions take and return spans in normal form where they say so: sorted, disjoint, none empty.
"""

from collections.abc import Iterable, Sequence

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Span]:
    """The time that any of the spans covers, in normal form. Empty and reversed spans count for nothing."""
    found: list[Span] = []
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if found and begin <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found


def common(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """The time that both cover; both in normal form, and so is the result."""
    found: list[Span] = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if begin < end:
            found.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def minus(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """The time of the first that the second does not cover; both in normal form, and so is the result."""
    found: list[Span] = []
    j = 0
    for begin, end in first:
        while j < len(second) and second[j][1] <= begin:
            j += 1
        at = j
        while at < len(second) and second[at][0] < end:
            if second[at][0] > begin:
                found.append((begin, second[at][0]))
            begin = max(begin, second[at][1])
            at += 1
        if begin < end:
            found.append((begin, end))
    return found


def measure(spans: Iterable[Span]) -> int:
    """Nanoseconds of disjoint spans."""
    return sum(end - begin for begin, end in spans)
