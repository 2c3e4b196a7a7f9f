"""The feed's messages: any goes over the wire and comes back, in whatever pieces; what is none is a WireError."""

import contextlib
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.protocol import (
    EngineFault,
    Failed,
    Finished,
    FirstTokens,
    Hello,
    Load,
    Message,
    ReplicaFacts,
    ReplicaState,
    Usage,
    encode,
    feed_reader,
)
from deployments.wire import WireError, framed
from deployments.wire import encode as encode_any


def made(kind: type[Any], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any message of a kind; whole numbers as the wire takes them."""
    of_type = {int: st.integers(0, 2**62), float: st.floats(0), float | None: st.none() | st.floats(0)}
    numbers = {one.name: of_type[one.type] for one in dataclasses.fields(kind) if one.type in of_type}  # type: ignore[index]
    return st.builds(kind, **numbers, **given)


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    made(Hello, facts=made(ReplicaFacts)),
    made(Finished, usage=made(Usage)),
    *(made(kind) for kind in (Load, FirstTokens, Failed)),
)


@pytest.mark.whole
@given(st.lists(MESSAGES, max_size=5), st.integers(1, 50))
def test_any_messages_come_back_in_whatever_pieces(messages: list[Message], size: int) -> None:
    data, reader = b"".join(map(encode, messages)), feed_reader()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [one for piece in pieces for one in reader.feed(piece)] == messages


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_a_wire_error(data: bytes) -> None:
    for content in (data, framed(data)):
        with contextlib.suppress(WireError):
            feed_reader().feed(content)


def test_what_is_no_message_is_refused_by_name() -> None:
    for message, says in {
        ("Failed", Failed(EngineFault.DEAD, 7)): "Failed: Expected `str`, got `int` - at `\\$.detail`",  # type: ignore[arg-type]
        ("Load", Failed(EngineFault.DEAD, "")): "Load: .*`state`",
        ("Farewell", Load(ReplicaState.READY, 0, 0, 0, 0.0)): "a message of kind 'Farewell'; allowed: Hello, Load",
    }.items():
        with pytest.raises(WireError, match=says):
            feed_reader().feed(framed(encode_any(message)))
    with pytest.raises(WireError, match="a message of 4294967295 bytes; allowed: 1048576"):
        feed_reader().feed(b"\xff\xff\xff\xff")
