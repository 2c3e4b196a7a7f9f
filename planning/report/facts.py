"""What a report says about a run besides its outcome: what was run, the source of its costs, the SLOs, and what an hour
costs."""

from collections.abc import Iterable
from dataclasses import dataclass

from deployments.telemetry.published_error import Published
from planning.answer import Answer
from planning.unmodelled import Unmodelled
from planning.workload.changes import REJECTED, TraceChange


@dataclass(frozen=True, slots=True)
class Target:
    """The SLO of a traffic class: the share `attainment` of its requests see their first token within `ttft_s`;
    `itl_ms` is the time between tokens that it aims at (None: none is named)."""

    name: str
    ttft_s: float
    attainment: float
    itl_ms: float | None = None


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
class Basis:
    """The cost file: its name, `measured`, `profile` or `roofline`, the hardware, and the mean relative error of its
    step times."""

    file: str
    basis: str
    hardware: str
    error: float | None = None
    note: str = ""

    @property
    def measured(self) -> bool:
        """Whether it was measured on the engine that it stands for."""
        return self.basis == "measured"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """See the module. `sequences` is max_num_seqs of one engine. `replicas` run all the time, or from the start where
    `scaling` tells which policy then decides, and within what. `changes`: what was changed between the trace and what
    was simulated; `unmodelled`: what the spec asks for that was not simulated; `answer`: the range, and the runs with
    one replica fewer and one more."""

    spec: str
    model: str
    trace: str
    replicas: int
    load_scale: float
    basis: Basis
    targets: tuple[Target, ...]
    sequences: int
    kv_tokens: int
    price: Price
    published: Published | None = None
    scaling: str | None = None
    changes: tuple[TraceChange, ...] = ()
    unmodelled: tuple[Unmodelled, ...] = ()
    answer: Answer | None = None

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


def basis_line(basis: Basis) -> str:
    """On what the figures rest."""
    error = "" if basis.error is None else f" Their step times are off by {basis.error:.1%} on average."
    return f"{_BASIS[basis.basis]}{error}"


def change_rows(changes: Iterable[TraceChange]) -> list[tuple[bool, tuple[str, ...]]]:
    """A row a change: its kind, the requests and their share, and what became of them; and whether they were
    rejected."""
    return [
        (one.kind in REJECTED, (one.kind.value, f"{one.count:,} of {one.of:,}", f"{100 * one.share:.1f} %", one.what))
        for one in changes
    ]
