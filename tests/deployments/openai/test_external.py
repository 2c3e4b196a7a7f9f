"""What of a request leaves the cluster: fields of OpenAI's API, or nothing at all."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.openai.census import CENSUS, Effect
from deployments.openai.endpoints import BodyKind
from deployments.openai.errors import ApiError
from deployments.openai.external import ExternalBody, external_body, usage_in
from deployments.openai.inquiry import read_inquiry
from tests.deployments.openai.test_census import BODIES, member

SAMPLING = "temperature top_p n stop seed frequency_penalty presence_penalty max_tokens stream stream_options"
TALK = "messages tools tool_choice parallel_tool_calls response_format max_completion_tokens"
OPENAI = {
    BodyKind.CHAT: {"model", *SAMPLING.split(), *TALK.split()},
    BodyKind.COMPLETION: {"model", "prompt", *SAMPLING.split()},
}
"""Of OpenAI's API reference, those that change the answer and are no log probabilities or token ids."""
ME = {"user": "me", "metadata": {"a": "b"}, "store": True, "cache_salt": "s", "priority": 3, "safety_identifier": "me"}


def leaving(kind: BodyKind, body: dict[str, Any], max_tokens: int = 9) -> ExternalBody | None:
    data = json.dumps(body).encode()
    return external_body(read_inquiry(kind, data), data, "theirs", max_tokens)


def sent(kind: BodyKind, **changes: Any) -> dict[str, Any]:
    found = leaving(kind, {**BODIES[kind], **changes})
    assert found is not None
    return dict(json.loads(found.content))


@pytest.mark.whole
@given(st.data())
def test_only_fields_of_openai_are_sent(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(OPENAI)))
    names = sorted({field.name for field in CENSUS if kind in field.kinds and field.effect is not Effect.REFUSED})
    changes: dict[str, Any] = dict(ME)
    for name in data.draw(st.lists(st.sampled_from(names), max_size=3)):
        if name not in BODIES[kind] and "max" not in name and name != "stream":
            changes |= member(name, data.draw(st.sampled_from([None, False, 1, "x", [], {"a": 1}])))
    try:
        found = leaving(kind, {**BODIES[kind], **changes})
    except ApiError:
        return
    if found is not None:
        content = json.loads(found.content)
        assert content.keys() <= OPENAI[kind]
        assert content["model"] == "theirs"
        said = {name for name, value in changes.items() if value not in (None, False, [], {}) and name not in ME}
        assert said <= content.keys() | {"stream_options", "service_tier", "prompt_cache_key", "request_id"}


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 5},
        {"structured_outputs": {"regex": "a"}},
        {"logprobs": True},
        {"logit_bias": {"7": 1}},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "assistant", "content": "hi", "reasoning": "x"}]},
    ],
)
def test_what_cannot_be_said_there_stays(changes: dict[str, Any]) -> None:
    assert leaving(BodyKind.CHAT, {**BODIES[BodyKind.CHAT], **changes}) is None
    assert leaving(BodyKind.RESPONSE, BODIES[BodyKind.RESPONSE]) is None


def test_an_answer_has_a_bound() -> None:
    assert sent(BodyKind.CHAT)["max_tokens"] == 9
    assert sent(BodyKind.CHAT, max_completion_tokens=70)["max_completion_tokens"] == 70
    assert "max_tokens" not in sent(BodyKind.CHAT, max_completion_tokens=70, max_tokens=900)
    assert sent(BodyKind.COMPLETION)["max_tokens"] == 16
    text = {**BODIES[BodyKind.CHAT], "messages": [{"role": "user", "content": "é" * 50}], "n": 2}
    found = leaving(BodyKind.CHAT, text)
    assert found is not None
    assert found.most == (2 * len(found.content), 18)


def test_what_is_said_by_false_is_said_there() -> None:
    assert sent(BodyKind.CHAT, parallel_tool_calls=False, temperature=0)["parallel_tool_calls"] is False
    assert "stop" not in sent(BodyKind.CHAT, stop=None)


def test_usage_is_asked_for_and_found() -> None:
    assert sent(BodyKind.CHAT, stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in sent(BodyKind.CHAT)
    told = json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "x": 1}}).encode()
    assert usage_in(told)[0] == (5, 7)
    assert usage_in(b"data: " + told + b"\n\n") == ((5, 7), True)
    assert usage_in(b'data: {"choices":[{}],"usage":null}\n\n') == (None, False)
    assert usage_in(b"data: [DONE]\n\n") == (None, False)
    assert usage_in(b"<html>") == (None, False)
    for tokens in (-1, 1 << 30, 1 << 70, 1.5):  # what no bill could have
        assert usage_in(json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": tokens}}).encode())[0] is None
