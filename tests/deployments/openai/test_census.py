"""What the census says of a field is what the gateway does with it."""

import json
from typing import Any

import pytest

from deployments.openai.census import CENSUS, Effect, by_kind
from deployments.openai.endpoints import BodyKind
from deployments.openai.errors import ApiError, ErrorCode
from deployments.openai.inquiry import Inquiry, read_inquiry

LONG = "x" * 10_000
TALK = [{"role": "user", "content": "hi"}]
BODIES: dict[BodyKind, dict[str, Any]] = {
    BodyKind.CHAT: {"model": "demo", "messages": TALK},
    BodyKind.CHATS: {"model": "demo", "messages": [TALK, TALK]},
    BodyKind.COMPLETION: {"model": "demo", "prompt": "hi"},
    BodyKind.RESPONSE: {"model": "demo", "input": "hi"},
    BodyKind.MESSAGES: {"model": "demo", "messages": TALK, "max_tokens": 3},
    BodyKind.COUNT: {"model": "demo", "messages": TALK},
    BodyKind.TOKENIZER: {"model": "demo", "messages": TALK},
    BodyKind.EMBEDDING: {"model": "demo", "input": "hi"},
}
LIMITS = {"n", "max_tokens", "max_completion_tokens", "max_output_tokens"}
PROMPTS = {"messages": [{"role": "user", "content": LONG}], "tokens": [7] * 10_000}
READ = {"model", "stream", "cache_salt", "echo", "prompt_logprobs"}
"""Harmless, but read: a value of another type is refused."""


def read(kind: BodyKind, **changes: Any) -> Inquiry:
    return read_inquiry(kind, json.dumps({**BODIES[kind], **changes}).encode())


def member(name: str, value: Any) -> dict[str, Any]:
    outer, dot, inner = name.partition(".")
    return {outer: {inner: value} if dot else value}


def named(kind: BodyKind, effect: Effect) -> list[str]:
    return [field.name for field in by_kind(effect)[kind]]


@pytest.mark.parametrize("kind", BODIES)
def test_a_field_is_in_the_table_once(kind: BodyKind) -> None:
    names = [field.name for field in CENSUS if kind in field.kinds]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", BODIES)
def test_what_is_counted_makes_the_estimate_larger(kind: BodyKind) -> None:
    for name in named(kind, Effect.COUNTED):
        if name in LIMITS:
            assert read(kind, **{name: 7}) != read(kind), name
            continue
        value = PROMPTS.get(name, LONG)
        body = {name: [value] if (kind, name) == (BodyKind.CHATS, "messages") else value}
        if (kind, name) == (BodyKind.TOKENIZER, "prompt"):
            body["messages"] = None
        inquiry = read(kind, **body)
        assert inquiry.prompt_chars + inquiry.prompt_ids >= len(LONG), name


@pytest.mark.whole
@pytest.mark.parametrize("kind", BODIES)
def test_what_is_refused_is_named(kind: BodyKind) -> None:
    for name in named(kind, Effect.REFUSED):
        for value in ({"prompt_token_ids": [1] * 60_000}, {"a": 1}, "x", [1], 5, True):
            with pytest.raises(ApiError) as refused:
                read(kind, **member(name, value))
            assert (refused.value.error, refused.value.param) == (ErrorCode.UNSUPPORTED, name)
            assert name in refused.value.message
            assert len(refused.value.message) < 300
        for nothing in (None, False, [], {}):
            assert read(kind, **member(name, nothing)) == read(kind)


@pytest.mark.whole
@pytest.mark.parametrize("kind", BODIES)
def test_what_is_harmless_changes_nothing(kind: BodyKind) -> None:
    for name in set(named(kind, Effect.HARMLESS)) - READ:
        for value in (None, True, 1.5, LONG, [1, 2], {"a": [LONG]}):
            assert read(kind, **{name: value, "unknown": value}) == read(kind), name


CARRIERS: list[tuple[BodyKind, dict[str, Any]]] = [
    (BodyKind.CHAT, {"role": "assistant", "content": "", "reasoning": LONG}),
    (BodyKind.CHAT, {"role": "assistant", "content": "", "reasoning": None, "reasoning_content": LONG}),
    (BodyKind.CHAT, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": LONG}}]}),
    (BodyKind.CHAT, {"role": "tool", "content": "", "tool_call_id": LONG}),
    (BodyKind.CHAT, {"role": "developer", "content": "", "tools": [{"function": {"description": LONG}}]}),
    (BodyKind.CHAT, {"role": "user", "content": "", "task": LONG}),
    (BodyKind.CHAT, {"role": "user", "content": [{"type": "refusal", "refusal": LONG}]}),
    (BodyKind.CHAT, {"role": "assistant", "content": [{"type": "thinking", "text": "short", "thinking": LONG}]}),
    (BodyKind.CHAT, {"role": "tool", "content": [{"type": "tool_reference", "name": LONG}]}),
    (BodyKind.RESPONSE, {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": LONG}),
    (BodyKind.RESPONSE, {"type": "function_call_output", "call_id": LONG, "output": "x"}),
    (BodyKind.RESPONSE, {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": LONG}]}),
    (BodyKind.MESSAGES, {"role": "user", "content": [{"type": "tool_result", "text": "short", "content": LONG}]}),
    (BodyKind.MESSAGES, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": LONG}]}),
    (BodyKind.MESSAGES, {"role": "assistant", "content": [{"type": "tool_use", "id": LONG, "name": "f"}]}),
    (BodyKind.MESSAGES, {"role": "assistant", "content": [{"type": "tool_result", "content": [{"other": LONG}]}]}),
    (BodyKind.MESSAGES, {"role": "user", "content": [{"type": "tool_result", "content": [{"tool_name": LONG}]}]}),
    (
        BodyKind.MESSAGES,
        {"role": "system", "content": [{"type": "tool_addition", "tool": {"definition": {"description": LONG}}}]},
    ),
]


@pytest.mark.parametrize(("kind", "message"), CARRIERS)
def test_what_vllm_takes_of_a_message_is_counted(kind: BodyKind, message: dict[str, Any]) -> None:
    inquiry = read(kind, **{"input" if kind is BodyKind.RESPONSE else "messages": [message]})
    assert len(LONG) <= inquiry.prompt_chars < 2 * len(LONG)


def test_what_all_conversations_of_a_batch_share_counts_for_each() -> None:
    inquiry = read(BodyKind.CHATS, documents=[{"text": LONG}])
    assert (inquiry.sequences, inquiry.prompt_chars >= len(LONG)) == (2, True)


def test_pictures_are_not_counted_as_text() -> None:
    picture = {"type": "image", "source": {"type": "base64", "data": LONG}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [picture]}]}
    assert read(BodyKind.MESSAGES, messages=[result]).prompt_chars < 100
