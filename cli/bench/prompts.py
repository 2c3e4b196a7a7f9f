"""Makes request bodies of wanted lengths: random prompts, so that no prefix cache answers for the engine.

Prompts are made of token ids that the endpoint's tokenizer knows, or of words whose cost in tokens was measured: by the
endpoint's `/tokenize`, once per run (vLLM's route: `{model, prompt | messages}` -> `{count, tokens}`). An endpoint
without that route gets words at an estimated cost; the report says so, and shows the prompt tokens that the endpoint
itself counted.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from cli.bench.client import BenchClient, Endpoint

_NUMBERS = "one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand"
_LETTERS = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
_COMMON = """the of and to in is it you that he was for on are with as his they be at this have from or had by not but
what all were when we there can an your which their said if do will each about how up out them then she
many some so these would other into has more her like him see time could no make than first been its who
now people my made over did down only way find use may water long little very after words called just
where most know get through back much before go good new write our used me man too any day same right
look think also around another came come work three word must because does part even place well such here
take why things help put years different away again off went old number great tell men say small every
found still between name should home big give air line set own under read last never us left end along
while might next sound below saw something thought both few those always looked show large often together
asked house don world going want school important until form food keep children feet land side without
boy once animals life enough took sometimes four head above kind began almost live page got earth need
far hand high year mother light parts country father let night following picture being study second eyes
soon times story boys since white days ever paper hard near sentence better best across during today
others however sure means knew try told young miles sun ways thing whole hear example heard several
change answer room sea against top turned learn point city run toward five using himself usually"""
WORDS = tuple(dict.fromkeys(f"{_NUMBERS} {_LETTERS} {_COMMON}".split()))
ESTIMATED_TOKENS_PER_WORD = 1.1
_FEWEST = 16
_PROBES = (32, 160)
"""Numbers of words whose cost is measured; the line through them gives tokens per word and what the chat template
adds."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Prompts are lists of these token ids: their length is exact."""

    ids: tuple[int, ...]
    how: str = "token ids, exact"


@dataclass(frozen=True, slots=True)
class Words:
    """Prompts are text: n words cost `base_tokens` + n * `tokens_per_word`."""

    words: tuple[str, ...]
    base_tokens: float
    tokens_per_word: float
    how: str

    def count_for(self, prompt_tokens: int) -> int:
        """How many words come nearest to `prompt_tokens`; at least one."""
        return max(1, round((prompt_tokens - self.base_tokens) / self.tokens_per_word))


Vocabulary = TokenIds | Words


async def measure_vocabulary(client: BenchClient, model: str, text: bool = False) -> Vocabulary:
    """The vocabulary for prompts to `model` at the client's endpoint; with `text` no token ids. Raises EndpointError
    when it cannot be reached."""
    everything = await _tokenize(
        client, model, prompt=" ".join(WORDS), add_special_tokens=False, return_token_strs=True
    )
    if everything is None:
        return Words(WORDS, 0.0, ESTIMATED_TOKENS_PER_WORD, "words, estimated: the endpoint has no /tokenize")
    ids = tuple(sorted(set(everything.get("tokens") or ())))
    if client.endpoint == "completions" and not text and len(ids) >= _FEWEST:
        return TokenIds(ids)
    words = _single_token_words(everything)
    costs = [await _cost(client, model, " ".join(_cycled(words, count))) for count in _PROBES]
    if None in costs:
        return Words(
            words, 0.0, ESTIMATED_TOKENS_PER_WORD, "words, estimated: /tokenize refuses this endpoint's prompts"
        )
    return _line(words, [float(cost or 0) for cost in costs])


def _line(words: tuple[str, ...], costs: list[float]) -> Words:
    slope = (costs[1] - costs[0]) / (_PROBES[1] - _PROBES[0])
    return Words(words, costs[0] - slope * _PROBES[0], slope, "words, measured by /tokenize")


def _single_token_words(answer: dict[str, Any]) -> tuple[str, ...]:
    """The words that are one token each, as the token strings show (byte-level BPE and SentencePiece mark a leading
    blank); else all."""
    strings = {str(text).lstrip("Ġ▁ ") for text in answer.get("token_strs") or () if str(text)[:1] in "Ġ▁ "}
    single = tuple(word for word in WORDS if word in strings)
    return single if len(single) >= _FEWEST else WORDS


def _cycled(words: tuple[str, ...], count: int) -> list[str]:
    return [words[position % len(words)] for position in range(count)]


async def _cost(client: BenchClient, model: str, text: str) -> int | None:
    """What a prompt of this text costs in tokens, the chat template included."""
    prompt: dict[str, Any] = (
        {"messages": [{"role": "user", "content": text}]} if client.endpoint == "chat" else {"prompt": text}
    )
    answer = await _tokenize(client, model, **prompt)
    return None if answer is None else int(answer["count"])


async def _tokenize(client: BenchClient, model: str, **fields: Any) -> dict[str, Any] | None:
    answer = await client.ask("/tokenize", {"model": model, **fields})
    return answer if answer is not None and isinstance(answer.get("count"), int) else None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What all requests of a run have in common."""

    model: str
    endpoint: Endpoint
    stream: bool = True
    ignore_eos: bool = False


class Prompts:
    """A source of request bodies. Not to be shared by runs: each body moves its random generator on."""

    def __init__(self, vocabulary: Vocabulary, options: RequestOptions, seed: int) -> None:
        self._vocabulary = vocabulary
        self._rng = np.random.default_rng([seed, 1])
        pool = vocabulary.ids if isinstance(vocabulary, TokenIds) else vocabulary.words
        self._pool = np.array(pool, dtype=np.int64 if isinstance(vocabulary, TokenIds) else np.object_)
        self._head, self._tail = _frame(options)

    def body(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """The JSON body of a request with a prompt of `prompt_tokens` that asks for `output_tokens`."""
        if isinstance(self._vocabulary, TokenIds):
            prompt = json.dumps(self._draw(prompt_tokens).tolist(), separators=(",", ":"))
        else:
            prompt = json.dumps(" ".join(self._draw(self._vocabulary.count_for(prompt_tokens))))
        return f"{self._head}{prompt}{self._tail}{output_tokens}}}".encode()

    def _draw(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        return self._pool[self._rng.integers(len(self._pool), size=count)]


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
