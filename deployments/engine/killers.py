"""Requests that are known to kill an engine, by its version: a closed table. They are refused before the engine's core
sees them (`vllm_app.py`).

An entry goes when the version does. What is not known here costs two replicas at most (`scheduling/suspects.py`). Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestTraits:
    """Of one request. `prompt_logprobs`: it asks for log probabilities of its prompt."""

    prompt_logprobs: bool


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """vLLM's version, the kind of device it runs on (vLLM's own word: `cpu`, `cuda`), and whether it has an adapter
    that changes the output layer."""

    version: str
    device: str
    adapted_output: bool


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

    def reported(self, engine: EngineBuild) -> str:
        return f"{self.field}: vLLM {engine.version} on {engine.device} {self.reason}; allowed: {self.allowed}"


KILLERS = (
    Killer(
        version="0.32",
        device="cpu",
        field="prompt_logprobs",
        # PunicaWrapperCPU.add_lora_logits takes the rows of a prompt's logits for sequences (`vllm_patches.py`).
        reason="ends when it computes them beside other requests while an adapter of the output layer is loaded",
        allowed="no prompt_logprobs (echo with logprobs), or a model without adapters of lm_head",
        kills=lambda asked, engine: asked.prompt_logprobs and engine.adapted_output,
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
