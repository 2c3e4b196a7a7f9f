"""Gives drawn requests the hashes of what they share: system prompts, and the conversation so far. Pure.

What a prompt shares with none has no hashes: it can not be found in a cache. Hashes are plain numbers below 2^63, of a range for each stream (the
system prompts, the same in all regions) and one for each stream in a region (the conversations).
"""

import numpy as np

from planning.workload.lengths import IntArray
from planning.workload.prefixes import Prefixes
from planning.workload.traffic.talks import Turns

_TEXTS_BITS = 36  # of a stream's system prompts: 2^16 texts of at most 2^20 chunks
_TEXT_BITS = 20
_TALKS_FROM = 1 << 48
_TALKS_BITS = 36
_REGIONS = 64


def hashed(turns: Turns, text: IntArray, text_chunks: int, chunk_tokens: int, stream: int, region: int, *, talks: bool) -> Prefixes | None:
    """The prefixes of the turns.

    `text` is the system prompt of each conversation (-1: none), of `text_chunks` whole chunks; `talks`: turns share what was said before.
    """
    chunks_of_text = np.where(text >= 0, text_chunks, 0)
    if talks:
        return _of_talks(turns, text, chunks_of_text, chunk_tokens, stream, region)
    if not text_chunks or not (text >= 0).any():
        return None
    texts = int(text.max()) + 1
    hashes = (stream << _TEXTS_BITS) + (np.arange(texts)[:, None] << _TEXT_BITS) + np.arange(text_chunks)
    mine = text[turns.talk]
    return Prefixes(chunk_tokens, hashes.ravel(), np.maximum(mine, 0) * text_chunks, chunks_of_text[turns.talk].astype(np.int32))


def _of_talks(turns: Turns, text: IntArray, chunks_of_text: IntArray, chunk_tokens: int, stream: int, region: int) -> Prefixes:
    """Each conversation is one chain of hashes, as long as its last prompt, of which its turns are beginnings."""
    counts = turns.prompt_tokens // chunk_tokens
    length = np.zeros(len(text), dtype=np.int64)
    np.maximum.at(length, turns.talk, counts)
    start = np.cumsum(length) - length
    talk = np.repeat(np.arange(len(text)), length)
    place = np.arange(len(talk)) - start[talk]
    own = _TALKS_FROM + ((stream * _REGIONS + region) << _TALKS_BITS) + np.arange(len(talk))
    shared = (stream << _TEXTS_BITS) + (text[talk] << _TEXT_BITS) + place
    return Prefixes(chunk_tokens, np.where(place < chunks_of_text[talk], shared, own), start[turns.talk], counts.astype(np.int32))
