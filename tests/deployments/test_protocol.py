"""The feed's messages: any goes over the wire and comes back; what is none is a ValueError and nothing else."""

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deployments.protocol import (
    DrainReason,
    EngineFault,
    Failed,
    Finished,
    FirstTokens,
    Hello,
    Load,
    Message,
    ReplicaFacts,
    ReplicaState,
    decode,
    encode,
)

COUNTS = st.integers(0, 2**53)
SECONDS = st.floats(0, 1e6)
FACTS = st.builds(
    ReplicaFacts,
    st.text(),
    st.text(),
    st.text(),
    COUNTS,
    st.text(),
    st.sampled_from(["generate", "embed"]),
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
)
STATES = st.sampled_from(ReplicaState)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, FACTS, STATES),
    st.builds(Load, STATES, COUNTS, COUNTS, COUNTS, st.floats(0, 1), st.none() | st.sampled_from(DrainReason)),
    st.builds(FirstTokens, st.lists(st.text()).map(tuple)),
    st.builds(
        Finished,
        st.text(),
        COUNTS,
        COUNTS,
        COUNTS,
        COUNTS,
        COUNTS,
        COUNTS,
        SECONDS,
        SECONDS,
        SECONDS,
        SECONDS | st.none(),
        SECONDS,
    ),
    st.builds(Failed, st.sampled_from(EngineFault), st.text()),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(MESSAGES)
def test_any_message_comes_back(message: Message) -> None:
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == message


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_a_value_error(line: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(line)


@given(ANYTHING)
def test_any_json_is_a_message_or_a_value_error(content: Any) -> None:
    with contextlib.suppress(ValueError):
        decode(json.dumps(content).encode())


@given(
    MESSAGES,
    st.dictionaries(
        st.sampled_from(["type", "facts", "state", "running", "drains_for", "request_ids", "fault", "more"]), ANYTHING
    ),
)
def test_a_changed_message_is_one_or_a_value_error(message: Message, change: dict[str, Any]) -> None:
    with contextlib.suppress(ValueError):
        decode(json.dumps({**json.loads(encode(message)), **change}).encode())
