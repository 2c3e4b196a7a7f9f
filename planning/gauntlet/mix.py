"""What kinds of requests come: their classes, promises and lengths. Drawn independently of each other."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planning.gauntlet.serving import Serving, full_rate
from planning.workload.lengths import IntArray, LogNormal

_PROBED = 1_200


@dataclass(frozen=True, slots=True)
class Kind:
    """`share` of the requests is of this class, promised a first token within `slo_s`; lengths stay within `most_prompt` and `most_output`."""

    traffic_class: str
    slo_s: float
    share: float
    prompt: LogNormal
    output: LogNormal
    most_prompt: int
    most_output: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """Columns of equal length; `kind` is the index in the mix."""

    kind: IntArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    slo_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares add up to 1."""

    kinds: tuple[Kind, ...]

    def draw(self, count: int, rng: np.random.Generator) -> Drawn:
        """So many requests."""
        chosen = rng.choice(len(self.kinds), size=count, p=[kind.share for kind in self.kinds])
        prompt, output = np.ones(count, dtype=np.int64), np.ones(count, dtype=np.int64)
        for number, kind in enumerate(self.kinds):
            own = chosen == number
            prompt[own] = np.minimum(kind.prompt.sample(int(own.sum()), rng), kind.most_prompt)
            output[own] = np.minimum(kind.output.sample(int(own.sum()), rng), kind.most_output)
        return Drawn(chosen, prompt, output, np.array([kind.slo_s for kind in self.kinds])[chosen])

    def heavier(self, factor: float) -> "Mix":
        """The same requests with prompts so many times as long."""
        return Mix(
            tuple(
                Kind(
                    kind.traffic_class,
                    kind.slo_s,
                    kind.share,
                    LogNormal(factor * kind.prompt.mean, kind.prompt.sigma),
                    kind.output,
                    round(factor * kind.most_prompt),
                    kind.most_output,
                )
                for kind in self.kinds
            )
        )


INTERACTIVE = Kind("interactive", 2.0, 0.92, LogNormal(800, 0.7), LogNormal(320, 0.7), 2_400, 1_500)
DOCUMENT = Kind("document", 10.0, 0.08, LogNormal(6_000, 0.4), LogNormal(250, 0.5), 16_000, 1_000)
CHATS = Mix((INTERACTIVE, DOCUMENT))
"""Mostly chat with a promise of 2 s, some long documents with one of 10 s."""


@lru_cache
def rate_of(serving: Serving, mix: Mix) -> float:
    """Requests a second of such traffic that one replica is worth. Measured once a process."""
    drawn = mix.draw(_PROBED, np.random.default_rng(7))
    return full_rate(serving, drawn.prompt_tokens, drawn.output_tokens)
