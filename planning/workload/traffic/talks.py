"""Conversations: which turns they have, when, and how long the prompts grow. Pure.

A request without sessions is a conversation of one turn. All turns of all conversations are drawn at once, as flat columns.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planning.workload.arrivals import FloatArray
from planning.workload.lengths import IntArray, Lengths
from planning.workload.traffic.file import Sessions


@dataclass(frozen=True, slots=True)
class Turns:
    """Requests in the order of their conversations: `talk` is the conversation's number."""

    talk: NDArray[np.int64]
    arrived_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray


def drawn_turns(
    starts_s: FloatArray, prefix_tokens: IntArray, prompt: Lengths, output: Lengths, sessions: Sessions | None, rng: np.random.Generator
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
    # `_before` sums what precedes a turn, so the pause that belongs to it is the one drawn with the turn before: equally distributed.
    arrived = starts_s[talk] + _before(pauses, first)
    return Turns(talk[fits], arrived[fits], prompts[fits], answers[fits])


Number = TypeVar("Number", np.int64, np.float64)


def _before(values: NDArray[Number], first: NDArray[np.int64]) -> NDArray[Number]:
    """For each turn the sum over the turns of its conversation before it; `first` is where its conversation begins."""
    until: NDArray[Number] = np.cumsum(values) - values
    return until - until[first] if len(until) else until
