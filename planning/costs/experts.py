"""How much of a mixture of experts a step uses.

Each token goes to `a_token` of `experts`. If they are drawn evenly and independently, T tokens reach

    distinct(T) = experts * (1 - (1 - a_token / experts)^T)

of them, whose weights the step reads. Routers are trained towards even shares; tokens of one text are alike, so a real
step reaches fewer. Where whole experts are spread over R GPUs, each layer waits for the one with the most tokens: of
n = T * a_token assignments drawn evenly, the fullest of R has about

    n / R + sqrt(2 * ln R * n / R * (1 - 1 / R))        (the expected maximum of R normal variables, an upper bound)
"""

from dataclasses import dataclass
from math import log, sqrt


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of one layer, and how many a token uses."""

    experts: int
    a_token: int

    def __post_init__(self) -> None:
        if not 1 <= self.a_token <= self.experts:
            raise ValueError(f"{self.a_token} experts a token: allowed: 1 to {self.experts}")

    def distinct(self, tokens: float) -> float:
        """Experts that so many tokens reach."""
        missed: float = (1 - self.a_token / self.experts) ** max(0.0, tokens)
        return self.experts * (1 - missed)

    def fullest(self, tokens: float, ranks: int) -> float:
        """Tokens of the GPU with the most of them, in tokens that stay on one GPU with all their experts."""
        if ranks == 1:
            return tokens
        mean = tokens * self.a_token / ranks
        spread = sqrt(2 * log(ranks) * mean * (1 - 1 / ranks))
        return min(tokens, (mean + spread) / self.a_token)
