"""What a report says about a run besides its outcome: what was run, the source of its costs, the SLOs, and what an hour
costs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.spec import TrafficClass
from deployments.engine_model.cost_file import CostFile
from deployments.telemetry.published_error import Published
from planning.answer import Answer
from planning.unmodelled import Unmodelled
from planning.workload.changes import REJECTED, TraceChange


@dataclass(frozen=True, slots=True)
class Price:
    """`per_replica` of what is paid for by the hour (`unit`: GPU, or replica where no GPU is known), in US dollars;
    None: no price is known."""

    unit: str
    per_replica: int
    usd_per_hour: float | None

    @property
    def hours(self) -> str:
        """The name of the sum: GPU-hours."""
        return f"{self.unit}-hours"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """See the module. `costs`: the cost files. `replicas` run all the time, or from the start where `scaling` tells
    which policy then decides, and within what. `changes`: what was changed between the trace and what was simulated;
    `unmodelled`: what the spec asks for that was not simulated; `answer`: the range, and the runs with one replica
    fewer and one more."""

    spec: str
    model: str
    trace: str
    replicas: int
    load_scale: float
    costs: Mapping[Path, CostFile]
    classes: tuple[TrafficClass, ...]
    price: Price
    published: Published | None = None
    scaling: str | None = None
    changes: tuple[TraceChange, ...] = ()
    unmodelled: tuple[Unmodelled, ...] = ()
    answer: Answer | None = None

    @property
    def cost(self) -> CostFile:
        """Of the only group, or of the first one."""
        return next(iter(self.costs.values()))

    @property
    def fleet(self) -> str:
        """The replicas in words."""
        return self.scaling or f"{self.replicas} replica{'' if self.replicas == 1 else 's'}"


NOT_MODELLED = (
    "Replicas that fail, but for those that the command names; GPUs that are not to be had; starts that take longer "
    "than the command says.",
    "Prefix caching of what the trace does not tell: answers that come back in the next turn's prompt, and traces "
    "without prefix hashes.",
    "Speculative decoding, LoRA adapters, and the exchange between GPUs of one replica, but for what the costs say.",
    "The network, and what a request takes around the engine's steps: from the cost file, the same for all.",
    "Clients: nobody hangs up, and nobody comes back after a rejection.",
)

_BASIS = {
    "measured": "The costs of steps were measured on this engine.",
    "profile": "The costs of steps come from a profile of the model's layers, not from a run of the engine: times may "
    "be off by tens of per cent.",
    "roofline": (
        "NOT MEASURED. The costs of steps come from data sheets (a roofline). Compare policies and numbers of replicas "
        "with this report; do not quote "
        "milliseconds or dollars from it."
    ),
}


def basis_line(cost: CostFile) -> str:
    """On what the figures rest."""
    error = "" if cost.error is None else f" Their step times are off by {cost.error:.1%} on average."
    return f"{_BASIS[cost.basis]}{error}"


def change_rows(changes: Iterable[TraceChange]) -> list[tuple[bool, tuple[str, ...]]]:
    """A row a change: its kind, the requests and their share, and what became of them; and whether they were
    rejected."""
    return [
        (one.kind in REJECTED, (one.kind.value, f"{one.count:,} of {one.of:,}", f"{100 * one.share:.1f} %", one.what))
        for one in changes
    ]
