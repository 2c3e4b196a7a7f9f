"""What stays of a conversation is one that vLLM takes: its own request class, parser of messages and chat template,
with the tokenizer of the demo model."""

import json
import random
from collections.abc import Callable
from functools import cache

import pytest

from deployments.openai.endpoints import BodyKind
from deployments.openai.inquiry import read_inquiry
from deployments.openai.turns import MAX_COUNTS, as_chat, read_turns
from tests.deployments.openai.conversations import as_items, chat
from tests.deployments.openai.test_turns import searched
from tests.source import ROOT

pytestmark = [pytest.mark.live, pytest.mark.contract, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def tokens() -> Callable[[bytes], int]:
    """The tokens of a chat's prompt; raises what vLLM would refuse it with."""
    from transformers import AutoTokenizer
    from vllm.config import ModelConfig
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers.chat_utils import parse_chat_messages

    folder = str(ROOT / "infra/demo/target")
    config, tokenizer = ModelConfig(model=folder), AutoTokenizer.from_pretrained(folder)

    @cache
    def count(body: bytes) -> int:
        request = ChatCompletionRequest.model_validate_json(body)
        parsed, _, _ = parse_chat_messages(request.messages, config, "string")
        tools = [tool.model_dump() for tool in request.tools or ()]
        return len(tokenizer.apply_chat_template(parsed, tools=tools, add_generation_prompt=True)["input_ids"])

    return count


def test_vllms_tokenizer_takes_what_is_sent_to_be_counted() -> None:
    from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest

    for seed in range(20):
        messages = chat(random.Random(seed))
        tool = {"name": "look", "parameters": {"type": "object"}}
        asked = {
            "model": "demo",
            "messages": messages,
            "tools": [{"type": "function", "function": tool}],
            "stream": True,
        }
        response = {"model": "demo", "input": as_items(messages), "tools": [{"type": "function", **tool}]}
        for body in (json.dumps(asked).encode(), as_chat(json.dumps(response).encode())):
            taken = TokenizeChatRequest.model_validate_json(body)
            assert [tool.function.name for tool in taken.tools or ()] == ["look"]
            assert len(taken.messages) >= len(messages)


def test_what_stays_is_valid_and_within_the_limit(tokens: Callable[[bytes], int]) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    shortened = 0
    for seed in range(1_000):
        rng = random.Random(seed)
        body = json.dumps({"model": "demo", "messages": chat(rng), "tools": tools}).encode()
        conversation, limit = read_turns(BodyKind.CHAT, body), round(tokens(body) * rng.uniform(0.3, 1.1))
        if conversation is None:
            continue
        chars = read_inquiry(BodyKind.CHAT, body).prompt_chars
        cut, counts = searched(conversation, chars, limit, rng.uniform(1, 9), tokens)
        assert counts <= MAX_COUNTS
        left = tokens(conversation.without(conversation.cuts[-1] if cut is None else cut))
        assert (left <= limit) == (cut is not None), seed
        shortened += cut is not None and cut.turns > 0
    assert shortened > 400
