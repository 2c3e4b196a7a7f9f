"""Which requests mean the same, by the census: nothing that may shape an answer is passed over."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.census import CENSUS, Field
from deployments.openai.endpoints import BY_KIND, ENDPOINTS, BodyKind, Endpoint
from deployments.openai.meaning import meaning_of
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


@pytest.mark.parametrize("kind", KEPT)
@given(data=st.data())
def test_a_field_that_may_shape_the_answer_sets_requests_apart(kind: BodyKind, data: st.DataObject) -> None:
    fields = [field for field in CENSUS if kind in field.kinds]
    unknown = Field("unknown", fields[0].effect, frozenset(), "")
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
