"""The census has each field that the installed vLLM has, and no other."""

import json
from typing import Any, get_args

import pytest

from deployments.openai.census import CENSUS
from deployments.openai.endpoints import ENDPOINTS, BodyKind
from deployments.openai.inquiry import read_inquiry

# vLLM's import warns of what its dependencies have deprecated.
pytestmark = [pytest.mark.live, pytest.mark.contract, pytest.mark.filterwarnings("ignore")]


def classes() -> dict[BodyKind, tuple[Any, ...]]:
    """vLLM's request classes, by the kind of body."""
    from vllm.entrypoints.anthropic import protocol as anthropic
    from vllm.entrypoints.openai.chat_completion import protocol as chat
    from vllm.entrypoints.openai.completion import protocol as completion
    from vllm.entrypoints.openai.responses import protocol as responses
    from vllm.entrypoints.pooling.embed import protocol as embed
    from vllm.entrypoints.serve.tokenize import protocol as tokenize

    return {
        BodyKind.CHAT: (chat.ChatCompletionRequest,),
        # It makes the former of each conversation, with all members of the body, those too that it does not know.
        BodyKind.CHATS: (chat.ChatCompletionRequest, chat.BatchChatCompletionRequest),
        BodyKind.COMPLETION: (completion.CompletionRequest,),
        BodyKind.RESPONSE: (responses.ResponsesRequest,),
        BodyKind.MESSAGES: (anthropic.AnthropicMessagesRequest,),
        BodyKind.COUNT: (anthropic.AnthropicCountTokensRequest,),
        BodyKind.TOKENIZER: (
            tokenize.TokenizeCompletionRequest,
            tokenize.TokenizeChatRequest,
            tokenize.DetokenizeRequest,
        ),
        BodyKind.EMBEDDING: (
            embed.EmbeddingCompletionRequest,
            embed.EmbeddingChatRequest,
            embed.EmbeddingBatchChatRequest,
            embed.EmbeddingChatInputRequest,
            embed.EmbeddingBatchChatInputRequest,
        ),
    }


def fields_of(kind: BodyKind) -> set[str]:
    models = classes()[kind]
    aliases = {field.alias for model in models for field in model.model_fields.values() if field.alias}
    return {name for model in models for name in model.model_fields} | aliases


def of_all_kinds() -> set[str]:
    """Fields that stand for all kinds of bodies, which not all of them have."""
    kinds: dict[str, set[BodyKind]] = {}
    for field in CENSUS:
        kinds.setdefault(field.name, set()).update(field.kinds)
    return {name for name, found in kinds.items() if found == set(BodyKind)}


def test_every_body_that_is_served_has_its_classes() -> None:
    assert {endpoint.body for endpoint in ENDPOINTS} - {BodyKind.ANY} == set(classes())


@pytest.mark.parametrize("kind", [kind for kind in BodyKind if kind is not BodyKind.ANY])
def test_the_census_has_what_vllm_has(kind: BodyKind) -> None:
    known = {field.name for field in CENSUS if kind in field.kinds}
    assert not fields_of(kind) - known, "new in vLLM: counted, harmless or refused?"
    listed = {field.name for field in CENSUS if kind in field.kinds} - of_all_kinds()
    assert not {name.partition(".")[0] for name in listed} - fields_of(kind), "not in vLLM any more"


def test_the_census_has_nothing_that_vllm_has_not() -> None:
    known = set().union(*map(fields_of, classes()))
    assert not {field.name.partition(".")[0] for field in CENSUS} - known


def test_what_vllm_takes_of_messages_is_counted() -> None:
    """But for media and what says of which kind a part is, and for what vLLM drops (`signature`, and `data` but with
    --enable-prompt-embeds)."""
    from vllm.entrypoints.anthropic.protocol import AnthropicContentBlock
    from vllm.renderers.chat_utils import ChatCompletionContentPartParam, CustomChatCompletionMessageParam

    parts = {name for part in get_args(ChatCompletionContentPartParam) for name in getattr(part, "__annotations__", ())}
    media = {"image_url", "video_url", "audio_url", "input_audio", "file", "source", "image_pil", "uuid"}
    media |= {f"{kind}_embeds" for kind in ("image", "audio", "video", "prompt")}
    known = {"type", "closed", "is_error", "prompt_cache_breakpoint", "signature", "data"}
    for name in set(CustomChatCompletionMessageParam.__annotations__):
        assert counted({"role": "user", name: "x" * 1_000}) >= 1_000, name
    for name in parts | set(AnthropicContentBlock.model_fields):
        chars = counted({"role": "user", "content": [{"type": "text", name: "x" * 1_000}]})
        assert (chars >= 1_000) is (name not in media | known), name


def counted(message: dict[str, Any]) -> int:
    return read_inquiry(BodyKind.CHAT, json.dumps({"messages": [message]}).encode()).prompt_chars
