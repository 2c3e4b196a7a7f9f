"""How long the replicas of a simulated cell take to start, by phases and nodes: from a spec, or from the starts that a
cluster recorded.

A replica goes to the first node with room, else to a new one. The first on a node fetches the model's files and
compiles; those that start meanwhile wait for the same files; later ones find both. The nodes of the replicas that run
at the beginning have them already.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoscaling.signals.signals import NextStart, PastStart, next_start
from cluster.spec import ClusterSpec, Model, Region
from deployments.cell.lifecycle_log import read_lives
from deployments.starts.phases import Phase, PhaseSeconds
from deployments.starts.start import ReplicaStart, StartOutcome

_NEW = "new"
_ON_NODE = (Phase.FETCH, Phase.COMPILE)


@dataclass(frozen=True, slots=True)
class StartPlan:
    """`first`: the phases of the first start on a node that stands, `later`: of the next ones there; `node_s`: until a
    new node stands. `nodes` stand, each with room for `per_node` replicas."""

    first: PhaseSeconds
    later: PhaseSeconds
    node_s: float
    nodes: int
    per_node: int

    @property
    def first_s(self) -> float:
        """The whole start of the first replica on a node that stands."""
        return sum(self.first.values())


def start_plan(
    spec: ClusterSpec, model: Model, region: Region, assumed: PhaseSeconds | None, past: Sequence[PastStart] = ()
) -> StartPlan | None:
    """By `past`, and by `assumed` where there is none; None where nothing is known of any phase."""
    known = [next_start(past, assumed, room) for room in ((_NEW,), tuple({start.node_id for start in past}), ())]
    if known[0] is None or known[1] is None or known[2] is None:
        return None
    first, later, without_room = (dict(_seconds(one)) for one in known if one is not None)
    if not past:
        later = {phase: seconds for phase, seconds in first.items() if phase not in _ON_NODE}
    pool = spec.pool_of(model, region)
    if pool.accelerator != "cpu":
        per_node = pool.gpus_per_node // model.settings.ranks
    else:
        per_node = 1 << 30 if pool.cpus_per_node is None else int(pool.cpus_per_node / model.cpus + 1e-6)
    return StartPlan(first, later, without_room.get(Phase.NODE, 0.0), pool.nodes, max(1, per_node))


def _seconds(one: NextStart) -> list[tuple[Phase, float]]:
    return [(Phase(name), seconds) for name, seconds in one.phases]


def recorded_starts(store: Path, model: str) -> list[PastStart]:
    """The starts of `model` that went well, oldest first, by the store of a cell (`cell.sqlite` of its run directory).
    Raises OSError, and ValueError where there is none."""
    found = [
        PastStart(event.node_id, event.seconds)
        for _, event in read_lives(store)
        if isinstance(event, ReplicaStart) and event.model == model and event.outcome is StartOutcome.READY
    ]
    if not found:
        raise ValueError(f"{store}: no start of model {model!r} that went well; needed: at least one")
    return found


class SimulatedStarts:
    """The nodes of one run, and what was learned of starts so far."""

    def __init__(self, plan: StartPlan) -> None:
        self._plan = plan
        self._on: dict[int, int] = {}
        """The node of each replica."""
        self._files_s: dict[int, float] = {}
        """When a node has the files; a compiled model follows."""
        self._compiled: set[int] = set()
        self._phases: dict[int, PhaseSeconds] = {}
        self._past: list[PastStart] = []

    def there(self, number: int) -> None:
        """A replica that runs from the beginning on."""
        node = self._place(number)
        self._files_s[node] = -math.inf
        self._compiled.add(node)

    def begin(self, number: int, now: float) -> float:
        """A replica starts: how long it takes."""
        plan, room = self._plan, bool(self._room())
        node = self._place(number)
        phases = dict(plan.later if node in self._compiled else plan.first)
        if not room:
            phases[Phase.NODE] = plan.node_s
        before_s = now + sum(phases.get(phase, 0.0) for phase in (Phase.NODE, Phase.ENVIRONMENT))
        fetched_s = self._files_s.setdefault(node, before_s + plan.first.get(Phase.FETCH, 0.0))
        phases[Phase.FETCH] = max(0.0, fetched_s - before_s)
        self._phases[number] = phases
        return sum(phases.values())

    def ready(self, number: int) -> None:
        """Its start is over; again, or of one that was there, is no news."""
        phases = self._phases.pop(number, None)
        if phases is not None:
            self._compiled.add(self._on[number])
            self._past.append(PastStart(str(self._on[number]), phases))

    def ended(self, number: int) -> None:
        """It leaves its node."""
        self._on.pop(number, None)
        self._phases.pop(number, None)

    def next_start(self) -> NextStart | None:
        """What an autoscaler expects now."""
        room = [str(node) for node in self._room()]
        assumed = {**self._plan.first, Phase.NODE: self._plan.node_s}
        return next_start(self._past[-_KEPT:], assumed, room)

    def _room(self) -> list[int]:
        """The nodes that stand and have room, in their order. One that was made stays."""
        taken = list(self._on.values())
        standing = range(max(self._plan.nodes, 1 + max(self._files_s, default=-1)))
        return [node for node in standing if taken.count(node) < self._plan.per_node]

    def _place(self, number: int) -> int:
        room = self._room()
        node = room[0] if room else max(self._plan.nodes, 1 + max(self._files_s, default=-1))
        self._on[number] = node
        return node


_KEPT = 12
"""As many starts as the directory of a live cell remembers."""
