"""Which requests may go to another model: those whose every field means the same there."""

import json
from typing import Any

import pytest

from cluster.spec import EngineSettings, Model
from deployments.openai.across import means_the_same
from deployments.openai.census import CENSUS, Across, Effect
from deployments.openai.endpoints import BodyKind
from tests.deployments.openai.test_census import BODIES, member

KINDS = (BodyKind.CHAT, BodyKind.COMPLETION, BodyKind.RESPONSE, BodyKind.MESSAGES)
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def model(name: str, **settings: Any) -> Model:
    return Model(name=name, source="/nowhere", settings=EngineSettings(max_model_len=1_024, **settings))


PLAIN = model("plain")
ABLE = model("able", tool_call_parser="hermes", reasoning_parser="qwen3")


def crosses(kind: BodyKind, asked: Model = PLAIN, other: Model = PLAIN, **changes: Any) -> bool:
    return means_the_same(kind, json.dumps({**BODIES[kind], **changes}).encode(), asked, other)


@pytest.mark.parametrize("kind", KINDS)
def test_each_field_crosses_as_the_census_says(kind: BodyKind) -> None:
    assert crosses(kind)
    for field in CENSUS:
        if kind not in field.kinds or field.name in BODIES[kind] or field.effect is Effect.REFUSED:
            continue
        given = member(field.name, {"a": 1})
        assert crosses(kind, **given) is (field.across is not Across.BOUND), field.name
        assert crosses(kind, ABLE, ABLE, **given) is (field.across is not Across.BOUND), field.name
        assert crosses(kind, ABLE, PLAIN, **given) is (field.across is Across.SAME), field.name
        assert crosses(kind, ABLE, PLAIN, **member(field.name, None)), field.name


@pytest.mark.parametrize("kind", sorted(set(BodyKind) - {*KINDS, BodyKind.ANY}))
def test_only_answers_cross(kind: BodyKind) -> None:
    assert not crosses(kind)


def test_only_text_crosses() -> None:
    def said(*parts: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": list(parts)}]

    text = {"type": "text", "text": "hi"}
    assert crosses(BodyKind.CHAT, messages=said(text, text))
    assert not crosses(BodyKind.CHAT, messages=said(text, PICTURE))
    assert not crosses(BodyKind.CHAT, messages=said("bare"))
    assert not crosses(BodyKind.MESSAGES, messages=said({"type": "tool_result", "content": [{"type": "image"}]}))
    assert crosses(BodyKind.MESSAGES, messages=said({"type": "tool_result", "content": [text]}))
    assert not crosses(BodyKind.RESPONSE, input=said({"type": "input_image", "image_url": "x"}))
    assert crosses(BodyKind.RESPONSE, input=[{"type": "function_call_output", "call_id": "c", "output": "x"}])
    assert not crosses(BodyKind.RESPONSE, input=[{"type": "computer_call", "call_id": "c"}])
