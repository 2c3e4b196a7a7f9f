"""The forms of an answer: vLLM's JSON for chats and completions, whole or as events of a stream. Pure.

Each event says in `system_fingerprint` that it is simulated. Texts are put in as they are: `filler.words` needs no escaping.
"""

import json
from typing import Any

from deployments.engine.simulated.filler import words
from deployments.openai.endpoints import BodyKind

FINGERPRINT = "raylane-simulated"
DONE = b"data: [DONE]\n\n"


def usage(prompt: int, output: int, cached: int) -> dict[str, Any]:
    """OpenAI's usage."""
    details = {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, "prompt_tokens_details": details}


class Events:
    """The events of one streamed answer."""

    def __init__(self, kind: BodyKind, answer_id: str, created: int, model: str) -> None:
        self._is_chat = kind is BodyKind.CHAT
        frame = {**_frame("chat.completion.chunk" if self._is_chat else "text_completion", answer_id, created, model), "choices": []}
        self._head = b"data: " + _dumped(frame)[:-2]

    def tokens(self, index: int, start: int, end: int, finish: str | None) -> bytes:
        """The tokens from `start` to before `end` of the choice `index`; `finish`: why it ended with them."""
        reason = b"null" if finish is None else b'"%s"' % finish.encode()
        text = words(start, end).encode()
        if self._is_chat:
            role = b'"role":"assistant",' if start == 0 else b""
            choice = b'{"index":%d,"delta":{%s"content":"%s"},"logprobs":null,"finish_reason":%s}' % (index, role, text, reason)
        else:
            choice = b'{"index":%d,"text":"%s","logprobs":null,"finish_reason":%s}' % (index, text, reason)
        return self._head + choice + b"]}\n\n"

    def usage(self, prompt: int, output: int, cached: int) -> bytes:
        """The event that ends a stream whose client asked for the usage."""
        return self._head + b'],"usage":' + _dumped(usage(prompt, output, cached)) + b"}\n\n"


def whole(kind: BodyKind, answer_id: str, created: int, model: str, choices: list[tuple[int, str]], prompt: int, cached: int) -> bytes:
    """A whole answer. `choices`: the tokens of each, and why it ended."""
    is_chat = kind is BodyKind.CHAT
    listed: list[dict[str, Any]] = []
    for index, (tokens, finish) in enumerate(choices):
        text = words(0, tokens)
        said = {"message": {"role": "assistant", "content": text, "tool_calls": []}} if is_chat else {"text": text}
        listed.append({"index": index, **said, "logprobs": None, "finish_reason": finish})
    frame = _frame("chat.completion" if is_chat else "text_completion", answer_id, created, model)
    return _dumped({**frame, "choices": listed, "usage": usage(prompt, sum(tokens for tokens, _ in choices), cached)})


def error(message: str, param: str | None, status: int) -> bytes:
    """An error as vLLM words it; the gateway brings it to OpenAI's form."""
    kind = {404: "NotFoundError", 500: "InternalServerError"}.get(status, "BadRequestError")
    return _dumped({"error": {"message": message, "type": kind, "param": param, "code": status}})


def _frame(kind: str, answer_id: str, created: int, model: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": created, "model": model, "system_fingerprint": FINGERPRINT}


def _dumped(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
