"""The frames of a peer's answer: however they are cut, they arrive; what is changed, left out or repeated is found."""

from time import process_time as cpu_s

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.peers import frames
from deployments.gateway.peers.frames import Frame, FrameKind, FrameReader, FrameWriter, HeadFrame

KEY = b"k" * 32
FRAMES = st.lists(st.builds(Frame, st.sampled_from(FrameKind), st.binary(max_size=200)), max_size=8)


def encoded(given_frames: list[Frame], key: bytes = KEY) -> list[bytes]:
    writer = FrameWriter(key)
    return [writer.encode(one.kind, one.content) for one in given_frames]


@given(FRAMES, st.lists(st.integers(1, 64), max_size=60))
def test_frames_arrive_however_they_are_cut(given_frames: list[Frame], cuts: list[int]) -> None:
    data, reader, found = b"".join(encoded(given_frames)), FrameReader(KEY), []
    for size in cuts:
        found += reader.feed(data[:size])
        data = data[size:]
    found += reader.feed(data)
    assert found == given_frames


@given(FRAMES.filter(bool), st.data())
def test_no_byte_can_be_changed(given_frames: list[Frame], data: st.DataObject) -> None:
    whole = bytearray(b"".join(encoded(given_frames)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    reader = FrameReader(KEY)
    try:
        found = reader.feed(bytes(whole))
    except ValueError:
        return
    assert found == given_frames[: len(found)], "a length that has grown: the rest is waited for"
    assert len(found) < len(given_frames)


@given(FRAMES.filter(lambda found: len(found) > 1), st.data())
def test_no_frame_can_be_moved_left_out_or_repeated(given_frames: list[Frame], data: st.DataObject) -> None:
    pieces = encoded(given_frames)
    first, second = sorted(data.draw(st.lists(st.integers(0, len(pieces) - 1), min_size=2, max_size=2, unique=True)))
    moved = [*pieces]
    moved[first], moved[second] = pieces[second], pieces[first]
    for wrong in (moved, pieces[:first] + pieces[first + 1 :], pieces[: first + 1] + pieces[first:]):
        with pytest.raises(ValueError, match="wrong signature"):
            FrameReader(KEY).feed(b"".join(wrong))


def test_the_frames_of_another_answer_are_none_of_this_one() -> None:
    with pytest.raises(ValueError, match="wrong signature"):
        FrameReader(b"o" * 32).feed(b"".join(encoded([Frame(FrameKind.BEAT, b"")])))


def test_a_frame_that_is_too_long_is_refused_at_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = encoded([Frame(FrameKind.DATA, b"x" * 100)])[0]
    monkeypatch.setattr(frames, "MAX_CONTENT", 99)
    with pytest.raises(ValueError, match="a frame of 100 bytes; allowed: at most 99"):
        FrameReader(KEY).feed(piece[:30])
    found = FrameReader(KEY).feed(FrameWriter(KEY).encode(FrameKind.DATA, b"y" * 250))
    assert [len(one.content) for one in found] == [99, 99, 52]


def test_a_long_frame_in_many_pieces_takes_no_longer_than_its_bytes() -> None:
    """Were what has come copied for each piece, these would be 32 GiB."""
    data, reader, began_s = encoded([Frame(FrameKind.DATA, b"x" * frames.MAX_CONTENT)])[0], FrameReader(KEY), cpu_s()
    found = [one for start in range(0, len(data), 4_096) for one in reader.feed(data[start : start + 4_096])]
    assert [len(one.content) for one in found] == [frames.MAX_CONTENT]
    assert cpu_s() - began_s < 2


def test_what_a_frame_holds_is_read_by_its_form() -> None:
    head = Frame(FrameKind.HEAD, b'{"status": 200, "headers": [["a", "b"]], "of": "a later version"}').read(HeadFrame)
    assert (head.status, head.headers) == (200, [("a", "b")])
    for content in (b"[]", b"", b"{", b"\xff", b"[" * 100_000, b'{"status": 204, "headers": []}', b'{"status": 200}'):
        with pytest.raises(ValueError, match="no HEAD frame"):
            Frame(FrameKind.HEAD, content).read(HeadFrame)
