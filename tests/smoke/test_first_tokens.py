"""Answers that are not streamed, on real vLLM: the engine tells of their first tokens, so that they hold no prefill
budget until their last."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.live.cluster import eventually
from tests.smoke.conftest import LiveCluster

pytestmark = [pytest.mark.live, pytest.mark.contract]

REQUESTS = 24


def ask(cluster: LiveCluster, number: int) -> requests.Response:
    """Every third one is streamed; every fourth has two prompts and two answers to each."""
    prompt: Any = list(range(number, number + 900))
    if number % 4 == 0:
        prompt = [prompt, prompt[::-1]]
    body = {
        "model": "demo",
        "prompt": prompt,
        "n": 2 if number % 4 == 0 else 1,
        "max_tokens": 48,
        "min_tokens": 48,
        "stream": number % 3 == 0,
    }
    return requests.post(
        cluster.url + "/v1/completions", json=body, headers={"x-request-id": f"whole-{number}"}, timeout=120
    )


def test_first_tokens_of_whole_answers_are_told_before_their_end(cluster: LiveCluster) -> None:
    with ThreadPoolExecutor(REQUESTS) as clients:
        answers = list(clients.map(lambda number: ask(cluster, number), range(REQUESTS)))
    assert {answer.status_code for answer in answers} == {200}

    def records() -> list[dict[str, Any]]:
        return [record for record in cluster.records() if record["request_id"].startswith("whole-")]

    eventually(lambda: len(records()) == REQUESTS)
    for record in records():
        assert record["ttft_s"] is not None, record
        assert record["ttft_s"] < record["wall_s"], record
        assert record["unaccounted_s"] < 0.01, record
    whole = [answer for number, answer in enumerate(answers) if number % 3]
    reported = [answer for answer in whole if "decode;dur=" in answer.headers["server-timing"]]
    assert len(reported) == len(whole), [answer.headers["server-timing"] for answer in whole]
