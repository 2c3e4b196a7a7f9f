"""Makes request bodies of wanted lengths: random prompts, so that no prefix cache answers for the engine, unless a shared prefix is asked for.

The bodies of one `Prompts` follow from its seed, in the order in which they are made. `runner.py` asks for one body a request.
"""

import json
from dataclasses import dataclass

import numpy as np

from cli.bench.client import Endpoint
from cli.bench.vocabulary import TokenIds, Vocabulary


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What all requests of a run have in common."""

    model: str
    endpoint: Endpoint
    stream: bool = True
    ignore_eos: bool = False
    shared_prefix_tokens: int = 0


class Prompts:
    """A source of request bodies. Not to be shared by runs: each body moves its random generator on."""

    def __init__(self, vocabulary: Vocabulary, options: RequestOptions, seed: int) -> None:
        self._vocabulary = vocabulary
        self._rng = np.random.default_rng([seed, 1])
        self._shared = options.shared_prefix_tokens
        pool = vocabulary.ids if isinstance(vocabulary, TokenIds) else vocabulary.words
        self._pool = np.array(pool, dtype=np.int64 if isinstance(vocabulary, TokenIds) else np.object_)
        # The prefix comes from a generator of its own: runs with different seeds share it too.
        self._prefix = self._pool[np.random.default_rng(0).integers(len(pool), size=self._shared)]
        self._head, self._tail = _frame(options)

    def body(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """The JSON body of a request with a prompt of `prompt_tokens` that asks for `output_tokens`."""
        if isinstance(self._vocabulary, TokenIds):
            prompt = json.dumps(self._draw(prompt_tokens).tolist(), separators=(",", ":"))
        else:
            prompt = json.dumps(" ".join(self._draw(self._vocabulary.count_for(prompt_tokens))))
        return f"{self._head}{prompt}{self._tail}{output_tokens}}}".encode()

    def _draw(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        """`count` pieces, the first of them the shared prefix."""
        own = self._pool[self._rng.integers(len(self._pool), size=max(0, count - self._shared))]
        return np.concatenate([self._prefix[:count], own])


def _frame(options: RequestOptions) -> tuple[str, str]:
    """What stands before the prompt and between it and the number of output tokens, in every body of a run."""
    fields: dict[str, object] = {"model": options.model, "stream": options.stream, "temperature": 0}
    if options.stream:
        fields["stream_options"] = {"include_usage": True}
    if options.ignore_eos:
        fields["ignore_eos"] = True
    opened = json.dumps(fields, separators=(",", ":"))[:-1]
    if options.endpoint == "chat":
        return opened + ',"messages":[{"role":"user","content":', '}],"max_tokens":'
    return opened + ',"prompt":', ',"max_tokens":'
