"""What an engine is asked before it is ready, against an app that stands in for vLLM's."""

import json
import logging
from typing import Any

import pytest

from cluster.spec import EngineSettings, LoraAdapter, Model, Speculative
from deployments.engine.warm_up import requests_of, warm_up


def model(settings: dict[str, Any] | None = None, **fields: Any) -> Model:
    return Model(name="m", source="org/m", settings=EngineSettings(max_model_len=64, **(settings or {})), **fields)


class App:
    """Notes what it is asked, and answers each path with a status."""

    def __init__(self, **statuses: int) -> None:
        self.statuses = statuses
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        assert int(dict(scope["headers"])[b"content-length"]) > 0
        self.asked.append((scope["path"], body))
        status = self.statuses.get(scope["path"].rpartition("/")[2], 200)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"be", "more_body": True})
        await send({"type": "http.response.body", "body": b"cause"})


async def test_everything_is_asked_of_a_batch_of_one_and_of_several() -> None:
    app = App()
    await warm_up(app, model(adapters=(LoraAdapter(name="a", source="x"),)))
    bodies = [body for path, body in app.asked if path == "/v1/completions" and body["model"] == "m"]
    for desired in ("logprobs", "prompt_logprobs", "seed", "top_k", "logit_bias"):
        assert {len(body["prompt"]) for body in bodies if desired in body} == {1, 3}, desired
    assert any("response_format" in body for path, body in app.asked if path == "/v1/chat/completions")
    assert any(body["model"] == "a" for _, body in app.asked)


def test_an_embedding_model_embeds_and_nothing_else() -> None:
    assert {asked.path for asked in requests_of(model(task="embed"))} == {"/v1/embeddings"}


def test_tools_are_asked_for_where_they_are_parsed() -> None:
    for parser in (None, "xlam"):
        assert any("tools" in asked.body for asked in requests_of(model({"tool_call_parser": parser}))) is (
            parser is not None
        )


def test_what_speculation_excludes_is_not_asked() -> None:
    speculating = model({"speculative": Speculative(method="ngram")})
    bodies = [asked.body for asked in requests_of(speculating)]
    assert not [body for body in bodies if {"min_p", "min_tokens", "logit_bias"} & body.keys()]
    assert any("top_p" in body for body in bodies)


async def test_what_clients_cannot_have_either_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await warm_up(App(completions=400), model())
    assert "not warmed up: /v1/completions answered 400" in caplog.text


async def test_an_engine_that_cannot_answer_does_not_become_ready() -> None:
    with pytest.raises(RuntimeError, match=r"cannot answer /v1/completions .*: because"):
        await warm_up(App(completions=500), model())
