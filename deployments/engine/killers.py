"""Requests that are known to kill an engine, by its version: a closed table. They are refused before the engine's core
sees them (`vllm_app.py`).

An entry goes when the version does. What is not known here costs two replicas at most (`scheduling/suspects.py`). Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """Of one request: `prompt_tokens` of its longest prompt, the `seed` that it samples with (None: none, or it does
    not sample)."""

    prompt_tokens: int
    seed: int | None


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """vLLM's version, the kind of device it runs on (vLLM's own word: `cpu`, `cuda`), and the most tokens of one
    step."""

    version: str
    device: str
    step_tokens: int


@dataclass(frozen=True, slots=True)
class Killer:
    """What kills `version` (and its patch releases) on `device`, and `reason`. `field`: of the request's body, which is
    at fault."""

    version: str
    device: str
    field: str
    reason: str
    allowed: str
    kills: Callable[[RequestTraits, EngineBuild], bool]

    def reported(self, asked: RequestTraits, engine: EngineBuild) -> str:
        where = f"vLLM {engine.version} on {engine.device}"
        allowed = self.allowed.format(step_tokens=engine.step_tokens)
        return f"{self.field} with a prompt of {asked.prompt_tokens} tokens: {where} {self.reason}; allowed: {allowed}"


KILLERS = (
    Killer(
        version="0.32",
        device="cpu",
        field="seed",
        # gpu_model_runner.py sets the generator's offset back after a step that ends within a prompt; torch's generator
        # for CPUs has none.
        reason="ends when a prompt with a seed is prefilled in several steps",
        allowed="at most {step_tokens} tokens (max_num_batched_tokens), temperature 0, or no seed",
        kills=lambda asked, engine: asked.seed is not None and asked.prompt_tokens > engine.step_tokens,
    ),
)


def killer_of(asked: RequestTraits, engine: EngineBuild) -> Killer | None:
    for killer in KILLERS:
        if (
            engine.device == killer.device
            and f"{engine.version}.".startswith(f"{killer.version}.")
            and killer.kills(asked, engine)
        ):
            return killer
    return None
