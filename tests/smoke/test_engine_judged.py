"""What only the engine can judge of a request: its errors reach clients in OpenAI's form, naming the field."""

from typing import Any

import openai
import pytest

pytestmark = [pytest.mark.live, pytest.mark.contract]

CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Count from 3 to 8."}],
    "max_tokens": 8,
}


@pytest.mark.parametrize(
    ("change", "field", "code"),
    [
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": 100}, "temperature", "invalid_value"),
        ({"top_p": 5}, "top_p", "invalid_value"),
        ({"frequency_penalty": 9}, "frequency_penalty", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_value"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value"),
        ({"tools": "hammer"}, "tools", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"response_format": {"type": "nonsense"}}, "response_format", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "invalid_value"),
        ({"messages": [{}]}, "messages", "invalid_value"),
        ({"messages": [{"role": "user", "content": "word " * 30_000}]}, "messages", "context_length_exceeded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_chat(client: openai.OpenAI, change: dict[str, Any], field: str, code: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body={**CHAT, "stream": stream, **change}, cast_to=object)
    assert (caught.value.param, caught.value.code, caught.value.type) == (field, code, "invalid_request_error")


def test_completions_and_the_tokenizer(client: openai.OpenAI) -> None:
    asks: list[tuple[str, dict[str, Any], str]] = [
        ("/completions", {"model": "demo", "prompt": ""}, "prompt"),
        ("/completions", {"model": "demo", "prompt": [[]]}, "prompt"),
        ("/completions", {"model": "demo", "prompt": [5] * 8_192}, "max_tokens"),
        ("/completions", {"model": "demo", "prompt": "x", "logprobs": 1_000}, "logprobs"),
        ("/completions", {"model": "demo", "prompt": "x", "stream_options": {"include_usage": True}}, "stream_options"),
        ("/responses", {"model": "demo", "input": "x", "temperature": "x"}, "temperature"),
        ("/../tokenize", {"model": "demo", "prompt": 5}, "prompt"),
        ("/../detokenize", {"model": "demo", "tokens": "x"}, "tokens"),
    ]
    for path, body, field in asks:
        with pytest.raises(openai.BadRequestError) as caught:
            client.post(path, body=body, cast_to=object)
        assert (caught.value.param, caught.value.type) == (field, "invalid_request_error"), (path, body)
