"""What crosses between cells as JSON: digests, questions, and what goes with a hop."""

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.peers.digests import digest_to_json, read_digest, read_questions
from deployments.gateway.peers.envelope import HopEnvelope, read_envelope
from deployments.peering import Digest, HandOverReason, HopFacts, LaneDigest, ModelDigest, Question, Received
from deployments.scheduling import TenantUse

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
    "r1", "eu", 2, 9, 1, HandOverReason.SOONER, "m", "interactive", "", frozenset({"eu", "us"}), frozenset({"a"}), 0.1,
    0.4, 9.0, 0.5, 3,
)  # fmt: skip
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


def test_an_envelope_comes_back_as_it_was() -> None:
    one = HopEnvelope(FACTS, "/v1/completions", "client's-own", TRACE)
    assert read_envelope(one.header()) == one
    assert one.header().isascii()
    assert not set(one.header()) & set("\r\n ")


def header(**changes: Any) -> str:
    content = json.loads(base64.urlsafe_b64decode(HopEnvelope(FACTS, "/v1/completions", "id", TRACE).header()))
    return base64.urlsafe_b64encode(json.dumps(content | changes).encode()).decode()


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "not base64!",
        base64.urlsafe_b64encode(b"[]").decode(),
        header(path=1),
        header(request_id=""),
        header(request_id="two\r\nlines"),
        header(request_id="x" * 129),
        header(trace={"authorization": "Bearer x"}),
        header(trace={"traceparent": "a\nb"}),
        header(trace=[]),
        header(facts={}),
        header(facts={"number": 1}),
        "x" * 40_000,
    ],
)
def test_what_is_no_envelope_is_refused_without_its_content(wrong: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the message is checked below
        read_envelope(wrong)
    assert "Bearer" not in str(refused.value)
