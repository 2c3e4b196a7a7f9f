"""What crosses between cells as JSON: digests, questions, and what goes with a hop."""

import base64
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.peers.digests import digest_to_json, read_digest, read_questions
from deployments.gateway.peers.hop import header_of, read_header
from deployments.peering import Digest, HandOverReason, HopFacts, LaneDigest, ModelDigest, Question, Received
from deployments.scheduling import TenantUse
from deployments.wire import WireError, to_plain

NUMBERS = st.integers(0, 1 << 40)
AMOUNTS = st.floats(0, 1e12)
NAMES = st.text("abc-.1", min_size=1, max_size=10)
DIGESTS = st.builds(
    Digest,
    NAMES,
    NUMBERS,
    NUMBERS,
    st.builds(Question, NUMBERS, NUMBERS),
    st.frozensets(NAMES, max_size=4),
    st.lists(
        st.builds(
            ModelDigest,
            NAMES,
            st.lists(st.builds(LaneDigest, NAMES, AMOUNTS, AMOUNTS), max_size=3).map(tuple),
            NUMBERS,
            NUMBERS,
            NUMBERS,
            NUMBERS,
            NUMBERS,
            AMOUNTS,
            st.none() | AMOUNTS,
            st.booleans(),
            st.lists(st.builds(TenantUse, NAMES, AMOUNTS, AMOUNTS, NUMBERS), max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    st.lists(st.builds(Received, NAMES, NUMBERS, NUMBERS), max_size=2).map(tuple),
)


def digest(**changes: Any) -> dict[str, Any]:
    model = ModelDigest("m", (LaneDigest("all", 0.1, 0.2),), 2, 8, 4, 100, 50, 1e4)
    whole = Digest("eu", 3, 7, Question(2, 9), frozenset({"a"}), (model,), (Received("us", 1, 4),))
    return digest_to_json(whole) | changes


@pytest.mark.whole
@given(DIGESTS)
def test_a_digest_comes_back_as_it_was(one: Digest) -> None:
    assert read_digest(json.loads(json.dumps(digest_to_json(one)))) == one


def test_a_wait_that_is_infinite_is_left_out() -> None:
    lanes = (LaneDigest("short", 0.1, 0.2), LaneDigest("long", 1.0, math.inf))
    one = Digest("eu", 1, 1, Question(1, 1), frozenset(), (ModelDigest("m", lanes, 0, 0, 0, 0, 0, 0.0),))
    found = read_digest(json.loads(json.dumps(digest_to_json(one), allow_nan=False)))
    assert found.models[0].lanes == lanes[:1]


def test_what_a_later_version_says_beside_is_passed_over() -> None:
    assert read_digest(digest(weather="fine")).cell == "eu"


@pytest.mark.parametrize(
    "wrong",
    [
        digest(epoch=-1),
        digest(epoch="x"),
        digest(answers=[1]),
        digest(models=[{"model": "m"}]),
        digest(models="m"),
        digest(marks=[1.5]),
        digest(models=[digest()["models"][0] | {"prefill_tokens_per_s": math.inf}]),
        digest(models=[digest()["models"][0] | {"replicas": 1 << 70}]),
        {},
        [],
        None,
        "digest",
    ],
)
def test_a_digest_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # msgspec's own
        read_digest(wrong)


def test_questions_name_their_model() -> None:
    assert read_questions({"questions": {"m": [4, 5]}}) == {"m": Question(4, 5)}
    for wrong in (None, [], {}, {"questions": {"m": [4]}}, {"questions": {"m": [4, -5]}}, {"questions": [1]}):
        with pytest.raises(ValueError):  # noqa: PT011  # msgspec's own
            read_questions(wrong)


FACTS = HopFacts(
    "q",
    "eu",
    3,
    7,
    12,
    1,
    HandOverReason.SOONER,
    "chat",
    "interactive",
    "acme",
    frozenset({"eu", "us"}),
    frozenset({"0a", "0b"}),
    70,
    None,
    1,
    0.5,
    -0.25,
    59.5,
    1.0,
    "/v1/completions",
    "g1",
)


def header(**changes: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(to_plain(FACTS) | changes)).decode()


def test_the_facts_of_a_hop_come_back_as_they_were() -> None:
    value = header_of(FACTS)
    assert read_header(value) == FACTS
    assert value.isascii()
    assert not set(value) & set("\r\n ")
    assert read_header(header(weather="of a later version")) == FACTS


BAD: list[tuple[str, Any]] = [
    ("request_id", ""),
    ("request_id", "x" * 129),
    ("request_id", "two words"),
    ("request_id", "x\r\nx-evil: 1"),
    ("request_id", 5),
    ("home", ""),
    ("attempt", -1),
    ("epoch", 1.5),
    ("number", 0),
    ("number", True),
    ("hops", -1),
    ("reason", "boredom"),
    ("model", None),
    ("tenant", "x" * 257),
    ("residency", "eu"),
    ("residency", ["eu", 5]),
    ("marks", [""]),
    ("marks", [str(number) for number in range(17)]),
    ("prompt_tokens", -1),
    ("sequences", "1"),
    ("waited_s", -0.1),
    ("waited_s", float("nan")),
    ("slack_s", float("-inf")),
    ("patience_s", float("inf")),
    ("slo_s", "1"),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_wrong_field_is_named(name: str, value: Any) -> None:
    with pytest.raises(WireError, match=name):
        read_header(header(**{name: value}))


@pytest.mark.parametrize("wrong", ["", "not base64!", base64.urlsafe_b64encode(b"[]").decode(), "x" * 40_000, "\xff"])
def test_what_is_no_header_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of several readers
        read_header(wrong)
