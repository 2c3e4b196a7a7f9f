"""Any split of an event stream passes the same bytes in order, and before the end only whole events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.sse import Events

LINES = st.lists(st.sampled_from([b"data: {}", b"event: x", b": note", b"data: a\xc3\xa4", b"id"]), min_size=1, max_size=3)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes, list[bytes]]:
    """A stream, its ends of lines, and the pieces in which it comes."""
    newline = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    events = draw(st.lists(LINES, max_size=5))
    stream = b"".join(newline.join(lines) + newline * 2 for lines in events) + draw(st.sampled_from([b"", b"data: half", b"d"]))
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return stream, newline, [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@given(streams())
def test_any_split_passes_the_same_bytes_and_only_whole_events(case: tuple[bytes, bytes, list[bytes]]) -> None:
    stream, newline, pieces = case
    events, passed = Events(), b""
    for piece in pieces:
        passed += events.feed(piece)
        assert stream.startswith(passed)
        assert not passed or passed.endswith(newline * 2)
    assert passed + events.rest() == stream
    assert events.rest() == b""


@given(streams())
def test_no_whole_event_is_held_back(case: tuple[bytes, bytes, list[bytes]]) -> None:
    _, newline, pieces = case
    events, passed, came = Events(), b"", b""
    for piece in pieces:
        came += piece
        passed += events.feed(piece)
        assert newline * 2 not in came[len(passed) :]


@pytest.mark.parametrize("piece", [b"data: x\n\n", b"data: x\n\ndata: y\n\n"])
def test_whole_events_are_passed_as_they_are(piece: bytes) -> None:
    assert Events().feed(piece) is piece
