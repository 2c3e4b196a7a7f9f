"""Conversations: which turns they have, when, and how long the prompts grow. Pure.

A request without sessions is a conversation of one turn. All turns of all conversations are drawn at once, as flat
columns.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray, Lengths
from planning.workload.trace import Prefixes
from planning.workload.traffic.file import Sessions


@dataclass(frozen=True, slots=True)
class Turns:
    """Requests in the order of their conversations: `talk` is the conversation's number."""

    talk: NDArray[np.int64]
    arrived_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray


def drawn_turns(
    starts_s: FloatArray,
    prefix_tokens: IntArray,
    prompt: Lengths,
    output: Lengths,
    sessions: Sessions | None,
    rng: np.random.Generator,
) -> Turns:
    """The turns of the conversations that start at `starts_s` with system prompts of `prefix_tokens`."""
    talks = len(starts_s)
    if sessions is None:
        return Turns(np.arange(talks), starts_s, prefix_tokens + prompt.sample(talks, rng), output.sample(talks, rng))
    turns = rng.geometric(1 / sessions.turns, size=talks)
    talk = np.repeat(np.arange(talks), turns)
    first = np.repeat(np.cumsum(turns) - turns, turns)
    added, answers = prompt.sample(len(talk), rng), output.sample(len(talk), rng)
    history = _before(added + answers, first)
    pauses = rng.exponential(sessions.pause_s, size=len(talk))
    prompts = prefix_tokens[talk] + history + added
    fits = prompts + answers <= sessions.context_tokens
    # `_before` sums what precedes a turn, so the pause that belongs to it is the one drawn with the turn before:
    # equally distributed.
    arrived = starts_s[talk] + _before(pauses, first)
    return Turns(talk[fits], arrived[fits], prompts[fits], answers[fits])


Number = TypeVar("Number", np.int64, np.float64)


def _before(values: NDArray[Number], first: NDArray[np.int64]) -> NDArray[Number]:
    """For each turn the sum over the turns of its conversation before it; `first` is where its conversation begins."""
    until: NDArray[Number] = np.cumsum(values) - values
    return until - until[first] if len(until) else until


_TEXTS_BITS = 36  # of a stream's system prompts: 2^16 texts of at most 2^20 chunks
_TEXT_BITS = 20
_TALKS_FROM = 1 << 48
_TALKS_BITS = 36
_REGIONS = 64


def hashed(
    turns: Turns, text: IntArray, text_chunks: int, chunk_tokens: int, stream: int, region: int, *, talks: bool
) -> Prefixes | None:
    """The prefixes of the turns.

    `text` is the system prompt of each conversation (-1: none), of `text_chunks` whole chunks; `talks`: turns share
    what was said before.
    """
    chunks_of_text = np.where(text >= 0, text_chunks, 0)
    if talks:
        return _of_talks(turns, text, chunks_of_text, chunk_tokens, stream, region)
    if not text_chunks or not (text >= 0).any():
        return None
    texts = int(text.max()) + 1
    hashes = (stream << _TEXTS_BITS) + (np.arange(texts)[:, None] << _TEXT_BITS) + np.arange(text_chunks)
    mine = text[turns.talk]
    return Prefixes(
        chunk_tokens, hashes.ravel(), np.maximum(mine, 0) * text_chunks, chunks_of_text[turns.talk].astype(np.int32)
    )


def _of_talks(
    turns: Turns, text: IntArray, chunks_of_text: IntArray, chunk_tokens: int, stream: int, region: int
) -> Prefixes:
    """Each conversation is one chain of hashes, as long as its last prompt, of which its turns are beginnings."""
    counts = turns.prompt_tokens // chunk_tokens
    length = np.zeros(len(text), dtype=np.int64)
    np.maximum.at(length, turns.talk, counts)
    start = np.cumsum(length) - length
    talk = np.repeat(np.arange(len(text)), length)
    place = np.arange(len(talk)) - start[talk]
    own = _TALKS_FROM + ((stream * _REGIONS + region) << _TALKS_BITS) + np.arange(len(talk))
    shared = (stream << _TEXTS_BITS) + (text[talk] << _TEXT_BITS) + place
    return Prefixes(
        chunk_tokens, np.where(place < chunks_of_text[talk], shared, own), start[turns.talk], counts.astype(np.int32)
    )
