"""Hashes of a prompt's leading chunks, each chained to the one before, so that one hash names a whole prefix: what cache credit is known by.

The text is brought to one form first (roles and contents in order, tools before them, as chat templates put them), so that two bodies with the same
prompt hash alike whatever their other fields. What a chat template adds is not seen here; `PrefixIndex.trust` learns what a credit is worth.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

CHUNK_CHARS = 256
"""About 64 tokens of English, four of vLLM's blocks: short enough to see a system prompt, long enough to be cheap."""
CHUNK_IDS = 64
_MOST_CHUNKS = 1_024
_DIGEST_BYTES = 8


def text_prefix(text: str) -> tuple[int, ...]:
    """The hashes of the whole chunks of a text, at most `_MOST_CHUNKS`."""
    whole = min(len(text) // CHUNK_CHARS, _MOST_CHUNKS)
    return _chained(text[index * CHUNK_CHARS : (index + 1) * CHUNK_CHARS].encode("utf-8", "surrogatepass") for index in range(whole))


def ids_prefix(ids: Sequence[int]) -> tuple[int, ...]:
    """The hashes of the whole chunks of a prompt given as token ids."""
    whole = min(len(ids) // CHUNK_IDS, _MOST_CHUNKS)
    return _chained(",".join(map(str, ids[index * CHUNK_IDS : (index + 1) * CHUNK_IDS])).encode() for index in range(whole))


def chat_text(messages: Iterable[dict[str, Any]], tools: object) -> str:
    """A conversation in one form."""
    pieces = [] if not tools else [json.dumps(tools, sort_keys=True, separators=(",", ":"))]
    for message in messages:
        content = message.get("content")
        shown = content if isinstance(content, str) else json.dumps(content, sort_keys=True, separators=(",", ":"))
        pieces.append(f"\x1e{message.get('role')}\x1f{shown}")
        if calls := message.get("tool_calls"):
            pieces.append(json.dumps(calls, sort_keys=True, separators=(",", ":")))
    return "".join(pieces)


def _chained(chunks: Iterable[bytes]) -> tuple[int, ...]:
    hashes: list[int] = []
    before = b""
    for chunk in chunks:
        before = hashlib.blake2b(before + chunk, digest_size=_DIGEST_BYTES).digest()
        hashes.append(int.from_bytes(before, "big"))
    return tuple(hashes)
