"""The replicas of one model as this gateway sees them, by its own feeds: which there are, and which take requests
now."""

from cluster.spec import DEFAULT_GROUP
from deployments.protocol import ReplicaFacts, ReplicaState
from deployments.scheduling import Binding, Capacity, Scheduler


class Replicas:
    """Facts by replica id. `cordoned`: the ids that operators keep new work off."""

    def __init__(self) -> None:
        self.cordoned: frozenset[str] = frozenset()
        self._facts: dict[str, ReplicaFacts] = {}
        self._ready: set[str] = set()
        self._turn = 0

    @property
    def ready(self) -> list[ReplicaFacts]:
        """Those that say that they take requests now, cordoned or not."""
        return [facts for replica_id, facts in self._facts.items() if replica_id in self._ready]

    @property
    def open(self) -> list[ReplicaFacts]:
        """Those that are to get requests now."""
        return [facts for facts in self.ready if facts.replica_id not in self.cordoned]

    def is_ready(self, replica_id: str) -> bool:
        """Whether that replica says that it takes requests now."""
        return replica_id in self._ready

    def url_of(self, replica_id: str) -> str | None:
        """Where it listens; None when it is unknown here or was lost."""
        facts = self._facts.get(replica_id)
        return None if facts is None else facts.url

    def context_of(self, replica_id: str) -> int:
        """The longest sequence that it takes, in tokens; 0 when it is unknown here or was lost."""
        facts = self._facts.get(replica_id)
        return 0 if facts is None else facts.max_model_len

    def group_of(self, replica_id: str) -> str | None:
        """Its group; None where its model has only one, or it is unknown here."""
        facts = self._facts.get(replica_id)
        return None if facts is None or facts.group == DEFAULT_GROUP else facts.group

    def version_of(self, replica_id: str) -> str:
        """Its version; empty where that is not known, or it is unknown here."""
        facts = self._facts.get(replica_id)
        return "" if facts is None else facts.version

    @property
    def versions(self) -> set[str]:
        """Those that are known of the ready ones: of two while a model is replaced."""
        return {facts.version for facts in self.ready} - {""}

    def ready_in_turn(self) -> list[ReplicaFacts]:
        """The open ones for work that needs no lease (tokenising), each time another one first."""
        found = self.open
        self._turn += 1
        first = self._turn % len(found) if found else 0
        return found[first:] + found[:first]

    def up(self, facts: ReplicaFacts) -> None:
        """It is ready (or ready again)."""
        self._facts[facts.replica_id] = facts
        self._ready.add(facts.replica_id)

    def set_aside(self, replica_id: str) -> None:
        """It takes nothing now; its next word that it is ready brings it back. An unknown one is no error."""
        self._ready.discard(replica_id)

    def lost(self, replica_id: str) -> None:
        """Its process is gone."""
        self._ready.discard(replica_id)
        self._facts.pop(replica_id, None)


SAME_TIME_S = 0.5
"""A smaller change of the time of a start is not reported to an owner again."""


class ExpectedStarts:
    """When the next replica of each group should be ready, on this process's clock, as far as somebody knows."""

    def __init__(self) -> None:
        self.ready_at_s: dict[str, float] = {}

    def take(self, ready_at_s: float | None, group: str) -> bool:
        """Whether that is news."""
        before = self.ready_at_s.get(group)
        if ready_at_s is None:
            return self.ready_at_s.pop(group, None) is not None
        self.ready_at_s[group] = ready_at_s if before is None or abs(ready_at_s - before) >= SAME_TIME_S else before
        return self.ready_at_s[group] != before


def cordon(scheduler: Scheduler, replica_ids: frozenset[str], now: float) -> bool:
    """Operators keep new work off these replicas, and off no others: whether that is news to the scheduler."""
    before = frozenset(scheduler.cordoned)
    for replica_id in sorted(replica_ids - before):
        scheduler.replica_cordoned(replica_id, now)
    for replica_id in sorted(before - replica_ids):
        scheduler.replica_uncordoned(replica_id, now)
    return before != replica_ids


def tell_state(scheduler: Scheduler, replica_id: str, state: ReplicaState | None, now: float) -> None:
    """A known replica drains, is unhealthy, or is unresponsive (None; one that drains goes on draining then)."""
    if state is ReplicaState.DRAINING:
        scheduler.replica_draining(replica_id, now)
    elif state is not None or not scheduler.is_draining(replica_id):
        scheduler.replica_unresponsive(replica_id, now)


def capacity_of(facts: ReplicaFacts, binding: Binding) -> Capacity:
    """What a replica may be given."""
    limits = (facts.max_num_seqs, facts.kv_tokens, facts.max_num_batched_tokens)
    return binding.capacity(*limits, facts.group, facts.max_model_len)
