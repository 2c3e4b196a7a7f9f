"""Which requests mean the same, by the census: nothing that may shape an answer is passed over."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.census import CENSUS
from deployments.openai.endpoints import BY_KIND, ENDPOINTS, BodyKind, Endpoint
from deployments.openai.marks import marks_of
from deployments.openai.meaning import FirstTurn, first_turn_of, meaning_of
from tests.deployments.openai.test_census import BODIES, member

KEPT = [kind for kind in BODIES if kind in BY_KIND and BY_KIND[kind].leased]
ASIDE = {"user", "prompt_cache_key", "priority", "session_id", "request_id"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def digest(kind: BodyKind, *apart: str, **changes: Any) -> bytes:
    return meaning_of(BY_KIND[kind], json.dumps({**BODIES[kind], **changes}).encode(), *apart).digest


def test_what_shapes_no_answer_is_named_here() -> None:
    assert {field.name for field in CENSUS if not field.shapes} == ASIDE
    response = {field.name for field in CENSUS if not field.shapes and BodyKind.RESPONSE in field.kinds}
    assert response == {"priority", "session_id"}, "vLLM's response repeats the user"


@pytest.mark.whole
@pytest.mark.parametrize("kind", KEPT)
@given(data=st.data())
def test_a_field_that_may_shape_the_answer_sets_requests_apart(kind: BodyKind, data: st.DataObject) -> None:
    fields = [field for field in CENSUS if kind in field.kinds]
    unknown = replace(fields[0], name="unknown", shapes=True)
    field = data.draw(st.sampled_from([*fields, unknown]))
    one, other = data.draw(JSON), data.draw(JSON)
    if json.dumps(one) == json.dumps(other):
        return
    same = digest(kind, **member(field.name, one)) == digest(kind, **member(field.name, other))
    assert same != field.shapes
    if field.shapes:
        assert digest(kind, **member(field.name, one)) != digest(kind) or one == BODIES[kind].get(field.name)


@pytest.mark.parametrize("kind", KEPT)
def test_the_order_of_members_and_what_comes_twice_mean_nothing(kind: BodyKind) -> None:
    body = BODIES[kind]
    turned = dict(reversed(body.items()))
    assert digest(kind) == meaning_of(BY_KIND[kind], json.dumps(turned, indent=None).encode()).digest
    twice = b'{"mod\\u0065l":"x",' + json.dumps(body).encode()[1:]
    assert digest(kind) == meaning_of(BY_KIND[kind], twice).digest, "the last one counts"


@given(st.lists(st.text(max_size=3), max_size=3), st.lists(st.text(max_size=3), max_size=3))
def test_whatever_sets_requests_apart_does(one: list[str], other: list[str]) -> None:
    kind = BodyKind.CHAT
    assert (digest(kind, *one) == digest(kind, *other)) == (one == other)


def test_paths_are_apart() -> None:
    body = b'{"model":"demo","messages":[],"input":"x","prompt":"x"}'
    paths: list[Endpoint] = [one for one in ENDPOINTS if one.leased and one.body is not BodyKind.ANY]
    assert len({meaning_of(one, body).digest for one in paths}) == len(paths)


@pytest.mark.parametrize(
    ("temperature", "repeats"),
    [("0", True), ("0.0", True), ("-0", True), ("0e3", True), ("1e-9", False), ("0.1", False), ("null", False),
     ('"0"', False), ("false", False), ("0." + "0" * 40, False), ("1", False), ("[0]", False)],
)  # fmt: skip
def test_only_a_zero_that_is_written_repeats(temperature: str, repeats: bool) -> None:
    body = b'{"model":"demo","prompt":"x","temperature":%s}' % temperature.encode()
    assert meaning_of(BY_KIND[BodyKind.COMPLETION], body).repeats == repeats
    assert not meaning_of(BY_KIND[BodyKind.COMPLETION], b'{"prompt":"x"}').repeats


SYSTEM, ASKED = {"role": "system", "content": "Be short."}, {"role": "user", "content": "Why?"}
TALKS = {BodyKind.CHAT: "messages", BodyKind.MESSAGES: "messages", BodyKind.RESPONSE: "input"}


def first_turn(kind: BodyKind, talk: Any, **changes: Any) -> FirstTurn | None:
    body = {**BODIES[kind], TALKS.get(kind, "messages"): talk, **changes}
    return first_turn_of(BY_KIND[kind], json.dumps(body).encode(), "tenant")


@pytest.mark.parametrize("kind", TALKS)
def test_a_first_turn_is_a_text_and_the_rest(kind: BodyKind) -> None:
    turn = first_turn(kind, [SYSTEM, ASKED])
    assert turn is not None
    assert turn.text == "Why?"
    other = first_turn(kind, [SYSTEM, {**ASKED, "content": "Who?"}], user="x")
    assert other is not None
    assert (other.rest == turn.rest) == (kind is not BodyKind.RESPONSE)
    rests = {turn.rest}
    for talk, changes in (
        ([ASKED], {}),
        ([{**SYSTEM, "content": "Be long."}, ASKED], {}),
        ([{**SYSTEM, "role": "developer"}, ASKED], {}),
        ([SYSTEM, {**ASKED, "name": "x"}], {}),
        ([SYSTEM, ASKED], {"seed": 1}),
        ([SYSTEM, ASKED], {"instructions": "Be kind."}),
    ):
        found = first_turn(kind, talk, **changes)
        assert found is not None
        rests.add(found.rest)
    assert len(rests) == 7


@pytest.mark.parametrize("kind", TALKS)
@pytest.mark.parametrize(
    "talk",
    [
        [],
        [SYSTEM],
        [ASKED, ASKED],
        [ASKED, {"role": "assistant", "content": "So."}, ASKED],
        [SYSTEM, {"role": "assistant", "content": "Why?"}],
        [{"role": "tool", "content": "3"}, ASKED],
        [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}],
        [{"role": "user"}],
        [{"content": "Why?"}],
        ["Why?"],
        {"role": "user"},
        None,
    ],
)
def test_a_later_turn_or_more_than_text_is_none(kind: BodyKind, talk: Any) -> None:
    assert first_turn(kind, talk) is None


def test_a_responses_text_is_a_first_turn_and_a_completions_is_none() -> None:
    turn = first_turn(BodyKind.RESPONSE, "Why?")
    assert turn is not None
    assert turn.text == "Why?"
    assert first_turn(BodyKind.COMPLETION, [ASKED]) is None
    assert first_turn_of(BY_KIND[BodyKind.COMPLETION], b'{"prompt":"Why?"}') is None


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("How long do eggs boil?", "What time do eggs need?", True),
        ("Boil 3 eggs", "Boil three eggs", True),
        ("Boil 3 eggs", "Boil 4 eggs", False),
        ("Boil 3.5 kg", "Boil 35 kg", False),
        ("Is it safe?", "Is it not safe?", False),
        ("It isn't safe", "It is not safe", True),
        ("What do you know of Anna and Bert?", "Tell me of Bert and Anna.", True),
        ("The way from Anna to Bert", "The way from Anna to Carl", False),
        ("Kann ich Äpfel essen?", "Kann ich Birnen essen?", False),
    ],
)
def test_numbers_names_and_negations_are_the_marks(one: str, other: str, equal: bool) -> None:
    assert (marks_of(one) == marks_of(other)) == equal
