"""The forms of an answer: vLLM's JSON for chats and completions, whole or as events of a stream, and the text in it:
one token is one word. Pure.

Each event says in `system_fingerprint` that it is simulated. Texts are put in as they are: `words` needs no
escaping.
"""

import json
from collections.abc import Sequence
from typing import Any

from deployments.openai.endpoints import BodyKind

_SENTENCE = (
    "simulated answer with no meaning at all it only takes the time that a real one would have taken and every word of "
    "it stands for one token "
    "so that a count of words is a count of tokens nothing was computed here and nothing should be read into it"
)
_WORDS = _SENTENCE.split()
_REPEATS = 64
_TEXT = " " + " ".join(_WORDS * _REPEATS)
_STARTS = [at for at, char in enumerate(_TEXT) if char == " "]
"""Where each word begins, with the blank before it."""
_PIECE_CHARS = 3
"""Of a text that is cut into tokens."""


def words(start: int, end: int) -> str:
    """The words from number `start` to before number `end` of an answer, as one text that needs no escaping in JSON."""
    if start >= end:
        return ""
    count = len(_STARTS)
    first, desired = start % len(_WORDS), end - start
    pieces = [_TEXT] * ((first + desired) // count)
    rest = (first + desired) % count
    text = "".join(pieces) + (_TEXT[: _STARTS[rest]] if rest else "")
    text = text[_STARTS[first] :]
    return text[1:] if start == 0 else text


def token_ids(text: str, count: int) -> list[int]:
    """Ids for a text of `count` tokens: any will do, so it is their number that counts, and that equal texts have equal
    ones."""
    return [1 + sum(text[at * _PIECE_CHARS : (at + 1) * _PIECE_CHARS].encode()) for at in range(count)]


def spoken(ids: Sequence[int]) -> str:
    return " ".join(_WORDS[number % len(_WORDS)] for number in ids)


assert json.dumps(_TEXT)[1:-1] == _TEXT


FINGERPRINT = "raylane-simulated"
DONE = b"data: [DONE]\n\n"


def usage(prompt: int, output: int, cached: int) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": details,
    }


class AnswerEvents:
    """The events of one streamed answer."""

    def __init__(self, kind: BodyKind, answer_id: str, created: int, model: str) -> None:
        self._is_chat = kind is BodyKind.CHAT
        frame = {
            **_frame("chat.completion.chunk" if self._is_chat else "text_completion", answer_id, created, model),
            "choices": [],
        }
        self._head = b"data: " + _dumped(frame)[:-2]

    def tokens(self, index: int, start: int, end: int, finish: str | None) -> bytes:
        """The tokens from `start` to before `end` of the choice `index`; `finish`: why it ended with them."""
        reason = b"null" if finish is None else b'"%s"' % finish.encode()
        text = words(start, end).encode()
        if self._is_chat:
            role = b'"role":"assistant",' if start == 0 else b""
            choice = b'{"index":%d,"delta":{%s"content":"%s"},"logprobs":null,"finish_reason":%s}' % (
                index,
                role,
                text,
                reason,
            )
        else:
            choice = b'{"index":%d,"text":"%s","logprobs":null,"finish_reason":%s}' % (index, text, reason)
        return self._head + choice + b"]}\n\n"

    def usage(self, prompt: int, output: int, cached: int) -> bytes:
        """The event that ends a stream whose client asked for the usage."""
        return self._head + b'],"usage":' + _dumped(usage(prompt, output, cached)) + b"}\n\n"


def whole(
    kind: BodyKind, answer_id: str, created: int, model: str, choices: list[tuple[int, str]], prompt: int, cached: int
) -> bytes:
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
