"""A simulated engine: a model that no GPU runs, whose answers are filler in the time that a cost file says."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from cluster.spec.base import Section
from cluster.spec.paths import beside_the_spec

NAME_MARK = "-simulated"
"""How the name of a simulated model ends, and no other's: whoever asks for one has to write the word."""


class Simulated(Section):
    """How a simulated engine answers (`docs/simulator.md`).

    `costs` is the path of a cost file, relative to the spec's own file. `tokens_per_chunk`: tokens that one event of a stream carries after the
    first, which carries one; a real engine sends one a token, which no laptop relays for forty GPUs. `speed`: so many times as fast as the costs say.
    An answer without `max_tokens` has a log-normal length of median `answer_tokens` and deviation `answer_sigma` (0: always the median), drawn by the
    request's `seed`, else by its id. `start_up_s`: how long a replica takes until it serves, beyond what its process takes (seconds).
    """

    costs: Annotated[str, Field(min_length=1)]
    tokens_per_chunk: Annotated[int, Field(ge=1, le=4_096)] = 64
    speed: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    answer_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 200
    answer_sigma: Annotated[float, Field(ge=0, le=4)] = 0.8
    start_up_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0

    @field_validator("costs")
    @classmethod
    def _is_beside_the_spec(cls, costs: str, info: ValidationInfo) -> str:
        return beside_the_spec(costs, info)
