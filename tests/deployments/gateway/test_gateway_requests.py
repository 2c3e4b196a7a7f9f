"""Bad input, through the whole gateway: each a 4xx in OpenAI's format that names the field, and nothing reaches a lane
or an engine."""

import json
from typing import Any

import pytest

from deployments.openai.endpoints import BodyKind
from deployments.openai.inquiry import read_inquiry
from deployments.telemetry.ledger import RequestOutcome
from tests.deployments.gateway.fake_engine import FakeEngine, whole
from tests.deployments.gateway.rig import ASK, CHAT, MakeRig, Rig

RESPONSE = {"model": "demo", "input": "x"}
KV = {"kv_transfer_params": {"prompt_token_ids": [7] * 60_000}}
LONG = "x" * 13_000
"""Of no model a thousand tokens."""

BAD: list[tuple[str, Any, int, str, str | None]] = [
    ("/v1/completions", {**ASK, "model": "other"}, 404, "model_not_found", "model"),
    ("/v1/completions", {**ASK, "model": "x" * 10_000}, 404, "model_not_found", "model"),
    ("/v1/completions", {**ASK, "model": 7}, 400, "invalid_value", "model"),
    ("/v1/completions", b"", 400, "invalid_json", None),
    ("/v1/completions", b'{"model": "demo", ', 400, "invalid_json", None),
    ("/v1/completions", b"\xff\x00", 400, "invalid_json", None),
    ("/v1/completions", b"[1]", 400, "invalid_json", None),
    ("/v1/completions", b"[" * 50_000, 413, "body_too_large", None),
    ("/v1/completions", {**ASK, "stop": [[]] * 70_000}, 413, "body_too_large", None),
    ("/v1/completions", {"model": "demo"}, 400, "invalid_value", "prompt"),
    ("/v1/completions", {**ASK, "prompt": []}, 400, "invalid_value", "prompt"),
    ("/v1/completions", {**ASK, "prompt": 5}, 400, "invalid_value", "prompt"),
    ("/v1/completions", {**ASK, "prompt": [1, "a"]}, 400, "invalid_value", "prompt"),
    ("/v1/completions", {**ASK, "prompt": [1] * 1_025}, 400, "context_length_exceeded", "prompt"),
    ("/v1/completions", {**ASK, "prompt": [[1], [2] * 1_025]}, 400, "context_length_exceeded", "prompt"),
    ("/v1/completions", {**ASK, "prompt": ["x"] * 129, "n": 16}, 400, "invalid_value", "prompt"),
    ("/v1/completions", {**ASK, "max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    ("/v1/completions", {**ASK, "max_tokens": -1}, 400, "invalid_value", "max_tokens"),
    ("/v1/completions", {**ASK, "max_tokens": 1e9}, 400, "invalid_value", "max_tokens"),
    ("/v1/completions", {**ASK, "max_tokens": 1_000_000_000}, 400, "invalid_value", "max_tokens"),
    ("/v1/completions", {**ASK, "max_tokens": 10**400}, 400, "invalid_value", "max_tokens"),
    ("/v1/completions", {**ASK, "prompt": None, "prompt_embeds": []}, 400, "invalid_value", "prompt"),
    ("/v1/completions", {**ASK, "prompt": None, "prompt_embeds": "aGk="}, 400, "invalid_value", "prompt"),
    ("/v1/completions", {**ASK, "max_tokens": "5"}, 400, "invalid_value", "max_tokens"),
    ("/v1/completions", {**ASK, "max_tokens": True}, 400, "invalid_value", "max_tokens"),
    ("/v1/completions", {**ASK, "n": 0}, 400, "invalid_value", "n"),
    ("/v1/completions", {**ASK, "n": 129}, 400, "invalid_value", "n"),
    ("/v1/completions", {**ASK, "stream": "yes"}, 400, "invalid_value", "stream"),
    ("/v1/chat/completions", {"model": "demo"}, 400, "invalid_value", "messages"),
    ("/v1/chat/completions", {**CHAT, "messages": []}, 400, "invalid_value", "messages"),
    ("/v1/chat/completions", {**CHAT, "messages": "hi"}, 400, "invalid_value", "messages"),
    ("/v1/chat/completions", {**CHAT, "messages": ["hi"]}, 400, "invalid_value", "messages"),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    ("/v1/chat/completions", {**CHAT, "max_completion_tokens": -1}, 400, "invalid_value", "max_completion_tokens"),
    ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 10**9}, 400, "invalid_value", "max_completion_tokens"),
    ("/v1/chat/completions/batch", CHAT, 400, "invalid_value", "messages"),
    ("/v1/chat/completions/batch", {**CHAT, "messages": []}, 400, "invalid_value", "messages"),
    ("/v1/chat/completions/batch", {**CHAT, "messages": [CHAT["messages"], []]}, 400, "invalid_value", "messages"),
    ("/v1/embeddings", {"model": "demo", "input": "x"}, 400, "unsupported", "model"),
    ("/v1/responses", {**RESPONSE, "store": True}, 400, "unsupported", "store"),
    ("/v1/responses", {**RESPONSE, "background": True}, 400, "unsupported", "background"),
    ("/v1/responses", {**RESPONSE, "previous_response_id": "resp_1"}, 400, "unsupported", "previous_response_id"),
    ("/v1/responses", {**RESPONSE, "max_output_tokens": 0}, 400, "invalid_value", "max_output_tokens"),
    ("/v1/responses", {**RESPONSE, "input": 5}, 400, "invalid_value", "input"),
    ("/v1/responses", {**RESPONSE, "input": []}, 400, "invalid_value", "input"),
    ("/invocations", {"model": "demo"}, 400, "invalid_value", None),
    ("/invocations", {"prompt": 5}, 400, "invalid_value", "prompt"),
    ("/invocations", {"input": "x"}, 400, "unsupported", "model"),
    ("/tokenize", {"model": "other", "prompt": "x"}, 404, "model_not_found", "model"),
    ("/tokenize", {"model": 5, "prompt": "x"}, 400, "invalid_value", "model"),
    ("/tokenize", {"prompt": "x" * 8_000_000}, 400, "context_length_exceeded", "prompt"),
    ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}, 400, "context_length_exceeded", "messages"),
    (
        "/tokenize",
        {"prompt": "x", "messages": [{"role": "user", "content": LONG}]},
        400,
        "context_length_exceeded",
        "messages",
    ),
    ("/tokenize", {"messages": CHAT["messages"], "tools": [{"x": LONG}]}, 400, "context_length_exceeded", "messages"),
    ("/detokenize", {"tokens": [7] * 1_025}, 400, "context_length_exceeded", "tokens"),
    ("/detokenize", b"nonsense", 400, "invalid_json", None),
    ("/v1/chat/completions", {**CHAT, **KV}, 400, "unsupported", "kv_transfer_params"),
    ("/v1/chat/completions/batch", {"messages": [CHAT["messages"]], **KV}, 400, "unsupported", "kv_transfer_params"),
    ("/v1/completions", {**ASK, "ec_transfer_params": {"a": 1}}, 400, "unsupported", "ec_transfer_params"),
    ("/v1/completions", {**ASK, "vllm_xargs": KV}, 400, "unsupported", "vllm_xargs.kv_transfer_params"),
    ("/v1/completions", {**ASK, "prompt_embeds": "aGk="}, 400, "unsupported", "prompt_embeds"),
    ("/v1/responses", {**RESPONSE, **KV}, 400, "unsupported", "kv_transfer_params"),
    ("/v1/responses", {**RESPONSE, "request_id": "mine"}, 400, "unsupported", "request_id"),
    ("/invocations", {**CHAT, **KV}, 400, "unsupported", "kv_transfer_params"),
]


@pytest.mark.whole
async def test_bad_input(rig: Rig, subtests: pytest.Subtests) -> None:
    for path, body, status, code, param in BAD:
        with subtests.test(path=path, body=str(body)[:80]):
            for data in (body, {**body, "stream": body.get("stream", True)}) if isinstance(body, dict) else (body,):
                got, error = await rig.error(data, path)
                assert (got, error["code"], error["param"]) == (status, code, param), error
                assert param is None or param in error["message"]
                assert len(error["message"]) < 300
            assert (await rig.last()).outcome is RequestOutcome.REFUSED
    assert not rig.engines[0].seen
    assert rig.owner.snapshot().submitted == 0


async def test_what_the_engine_judges_is_left_to_it(rig: Rig) -> None:
    for fields in (
        {"temperature": "hot"},
        {"unknown": 1},
        {"max_tokens": None},
        {"n": None},
        {"stream": None},
        {"prompt": ""},
        {"prompt": [[1], [2]]},
        {"kv_transfer_params": None, "ec_transfer_params": {}, "vllm_xargs": {"other": 1}},
    ):
        assert (await rig.ask({**ASK, **fields}))[0] == 200


async def test_documents_and_the_like_count_as_a_part_of_the_prompt(rig: Rig) -> None:
    ask = {**CHAT, "documents": [{"text": "x" * 600}], "chat_template_kwargs": {"x": "y" * 600}}
    assert (await rig.ask({**ask, "tools": [{"x": "y" * 600}]}, "/v1/chat/completions"))[0] == 200
    assert ((await rig.last()).expected_prompt_tokens or 0) >= 600


async def test_a_text_that_may_be_within_the_context_reaches_the_tokenizer(rig: Rig) -> None:
    """Some scripts and programs have ten characters a token."""
    for path, body in (("/tokenize", {"prompt": "x" * 10_000}), ("/detokenize", {"tokens": [7] * 1_024})):
        assert (await rig.ask(body, path))[0] == 200


async def test_several_conversations_are_as_many_sequences(rig: Rig) -> None:
    talks = [[{"role": "user", "content": "one two three"}], [{"role": "user", "content": "four"}]]
    rig.engines[0].behave = whole(b'{"choices": []}')
    body = {**CHAT, "messages": talks, "stream": True}
    assert await rig.ask(body, "/v1/chat/completions/batch") == (200, b'{"choices": []}')
    ledger = await rig.last()
    assert (ledger.stream, ledger.prompt_chars) == (False, len("userone two three"))
    assert rig.engines[0].seen[0].path == "/v1/chat/completions/batch"
    inquiry = read_inquiry(BodyKind.CHATS, json.dumps(body).encode())
    assert (inquiry.sequences, inquiry.prefix, inquiry.max_tokens) == (2, (), 3)


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
async def test_the_only_model_need_not_be_named(rig: Rig, model: dict[str, Any]) -> None:
    for path, ask in (
        ("/v1/completions", ASK),
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", RESPONSE),
        ("/tokenize", {"prompt": "x"}),
    ):
        body = {key: value for key, value in ask.items() if key != "model"} | model
        assert (await rig.ask(body, path))[0] == 200
        assert (await rig.last(len(rig.engines[0].seen))).model == "demo"
        assert json.loads(rig.engines[0].seen[-1].body) == body


async def test_an_echo_needs_no_token_of_its_own(rig: Rig) -> None:
    """A request for the log probabilities of a prompt: evaluation harnesses ask so."""
    assert (await rig.ask({**ASK, "max_tokens": 0, "echo": True, "logprobs": 1}))[0] == 200
    assert (await rig.last()).max_tokens == 1
    status, error = await rig.error({**ASK, "max_tokens": 0, "echo": False})
    assert (status, error["param"]) == (400, "max_tokens")
    assert len(rig.engines[0].seen) == 1


async def test_more_log_probabilities_of_a_prompt_than_are_allowed_reach_no_engine(rig: Rig) -> None:
    ask = {**ASK, "prompt": [7] * 500, "echo": True}
    assert (await rig.ask({**ask, "logprobs": 5}))[0] == 200
    status, error = await rig.error({**ask, "logprobs": 20})
    assert (status, error["param"]) == (400, "prompt_logprobs")
    assert "about 10500 log probabilities" in error["message"]
    assert "gateway.limits.max_prompt_logprobs = 8192" in error["message"]
    assert len(rig.engines[0].seen) == 1


async def test_an_invocation_goes_where_its_body_belongs(make_rig: MakeRig) -> None:
    rig = await make_rig()
    for ask, path in ((CHAT, "/v1/chat/completions"), (ASK, "/v1/completions")):
        assert (await rig.ask({**ask, "stream": True}, "/invocations"))[0] == 200
        assert rig.engines[0].seen[-1].path == path
        assert (await rig.last(len(rig.engines[0].seen))).path == "/invocations"
    status, error = await rig.error(CHAT, "/invocations", headers={"X-Amzn-SageMaker-Adapter-Identifier": "tuned"})
    assert (status, error["code"]) == (400, "unsupported"), (
        "an answer of the base model would be taken for the adapter's"
    )
    vectors = await make_rig(
        engines=0,
        models=[{"name": "demo", "source": "/nowhere", "task": "embed", "settings": {"max_model_len": 1_024}}],
    )
    engine = await vectors.add(FakeEngine("demo", "embed"))
    assert (await vectors.ask({"input": "x"}, "/invocations"))[0] == 200
    assert engine.seen[-1].path == "/v1/embeddings"


async def test_several_models_and_an_adapter(make_rig: MakeRig) -> None:
    settings, adapter = {"max_model_len": 1_024}, {"name": "chat-tuned", "source": "/nowhere"}
    models = [
        {"name": "chat", "source": "/nowhere", "settings": settings, "adapters": [adapter]},
        {"name": "vectors", "source": "/nowhere", "task": "embed", "settings": settings},
    ]
    rig = await make_rig(engines=0, models=models)
    chat = await rig.add(FakeEngine("chat"))
    vectors = await rig.add(FakeEngine("vectors", "embed"))
    vectors.behave = whole(b'{"data": []}')
    for name in ("chat", "chat-tuned"):
        assert (await rig.ask({**ASK, "model": name}))[0] == 200
    assert [json.loads(seen.body)["model"] for seen in chat.seen] == ["chat", "chat-tuned"]
    assert await rig.ask({"model": "vectors", "input": ["a", "b"]}, "/v1/embeddings") == (200, b'{"data": []}')
    status, error = await rig.error({"model": "vectors", "prompt": "x"})
    assert (status, error["code"], error["param"]) == (400, "unsupported", "model")
    status, error = await rig.error({"model": "vectors", "input": []}, "/v1/embeddings")
    assert (status, error["param"]) == (400, "input")
    status, error = await rig.error({"prompt": "x"}, "/tokenize")  # whose tokenizer?
    assert (status, error["param"]) == (400, "model")
    status, error = await rig.error({"prompt": "x"})
    assert (status, error["param"]) == (400, "model")
    assert "chat, chat-tuned, vectors" in error["message"]
    assert (await rig.ask({"model": "vectors", "prompt": "x"}, "/tokenize"))[0] == 200
    assert len(vectors.seen) == 2
    await rig.settled()
    assert {ledger.model for ledger in rig.closed} == {"chat", "vectors", ""}
