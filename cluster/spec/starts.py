"""How replicas start: what a phase takes before one was seen, and where engines keep what they compiled."""

from typing import Annotated

from pydantic import Field

from cluster.spec.base import Section

PhaseTime = Annotated[float, Field(ge=0, le=86_400)]


class StartSeconds(Section):
    """The seconds that each phase of a replica's start takes (`docs/operations.md`), where they are known beforehand:
    from `raylane status --starts` of another cluster, say.

    Autoscaling assumes them until the first start was measured, `simulate` and `tune` use them, and a simulated engine
    takes so long to start. `fetch` and `compile` are for the first replica on a node, since the next ones find the
    files there; `node` is for a replica that finds no node with room.
    """

    node: PhaseTime = 0.0
    environment: PhaseTime = 0.0
    fetch: PhaseTime = 0.0
    load: PhaseTime = 0.0
    compile: PhaseTime = 0.0
    graphs: PhaseTime = 0.0
    warm_up: PhaseTime = 0.0
    first_token: PhaseTime = 0.0


class Starts(Section):
    """`compile_cache`: the folder in which engines keep what they compiled, the same on every node, so that the next
    start on the node compiles nothing again. vLLM and torch name what they store there by model, settings and versions.
    On Kubernetes it is on a volume (`deploy.model_cache`, `compile_cache_claim`). The variables `VLLM_CACHE_ROOT` and
    `TORCHINDUCTOR_CACHE_DIR` of a node's environment override it."""

    compile_cache: Annotated[str, Field(pattern=r"^(/|~/|~$)")] = "~/.cache/raylane/compiled"
