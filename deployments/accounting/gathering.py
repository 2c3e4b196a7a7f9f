"""Puts the facts of a bill in order: each once, by replica. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deployments.accounting import facts
from deployments.accounting.spans import Span, union

LAG_NS = 30 * facts.NS
"""Gateways tell every few seconds: of the last so many before the directory's word nothing may be known yet."""


@dataclass(frozen=True, slots=True)
class ReplicaLife:
    """A replica had its GPUs from `begin_ns` to `end_ns`, and served from `ready_ns` on (None: it never did)."""

    replica_id: str
    model: str
    group: str
    begin_ns: int
    end_ns: int
    ready_ns: int | None


@dataclass(frozen=True, slots=True)
class Gathered:
    """Replicas, tariffs (oldest first), attempts by replica, and by replica when it was watched, and when a gateway had
    requests there. `late`: attempts that were reported after their hour was settled, by the hour of the report.
    `external`: attempts at the external tier."""

    lives: Mapping[str, ReplicaLife]
    tariffs: Mapping[tuple[str, str], Sequence[facts.Tariff]]
    attempts: Mapping[str, Sequence[facts.AttemptUsage]]
    watched: Mapping[str, Sequence[Span]]
    held: Mapping[str, Sequence[Span]]
    late: Mapping[str, int]
    external: Sequence[facts.ExternalUsage] = ()


def gathered(reported: Iterable[tuple[int | None, facts.Fact]]) -> Gathered:
    """What facts tell, each with the hour in which it counts where it came too late for its own (else None)."""
    replicas = _Replicas()
    tariffs: defaultdict[tuple[str, str], dict[int, facts.Tariff]] = defaultdict(dict)
    attempts: dict[str, facts.AttemptUsage] = {}
    watched: defaultdict[str, dict[int, int]] = defaultdict(dict)
    held: defaultdict[str, dict[int, int]] = defaultdict(dict)
    late: dict[str, int] = {}
    external: dict[str, facts.ExternalUsage] = {}
    for late_ns, fact in reported:
        match fact:
            case facts.AttemptUsage(attempt_id=attempt_id):
                known = attempts.get(attempt_id)
                if known is None or _RANK[fact.count] < _RANK[known.count]:
                    attempts[attempt_id] = fact
                if known is None and late_ns is not None:
                    late[attempt_id] = late_ns
            case facts.ExternalUsage(attempt_id=attempt_id):
                if external.setdefault(attempt_id, fact) is fact and late_ns is not None:
                    late[attempt_id] = late_ns
            case facts.Watched(to_ns=to_ns):
                for spans, since in ((watched, fact.since_ns), (held, fact.held_ns)):
                    for replica_id, since_ns in since.items():
                        known_ns = spans[replica_id].get(since_ns, to_ns)
                        spans[replica_id][since_ns] = max(to_ns, known_ns)
            case facts.Tariff():
                tariffs[fact.model, fact.group][fact.at_ns] = fact
            case _:
                replicas.take(fact)
    by_replica: defaultdict[str, list[facts.AttemptUsage]] = defaultdict(list)
    for one in attempts.values():
        by_replica[one.replica_id].append(one)
    ordered = {key: [by_time[at] for at in sorted(by_time)] for key, by_time in tariffs.items()}
    normal = [{key: union(spans.items()) for key, spans in known.items()} for known in (watched, held)]
    lives = replicas.lives({key: spans[-1][1] for key, spans in normal[0].items() if spans})
    return Gathered(lives, ordered, by_replica, normal[0], normal[1], late, tuple(external.values()))


_RANK = {facts.Count.ENGINE: 0, facts.Count.ESTIMATE: 1, facts.Count.CUT: 2}
"""Of several words on an attempt, the one of the gateway that had it counts: it knows more."""


@dataclass(slots=True)
class _Replicas:
    """Of each replica, by its id, the first of its beginnings and the last of its ends. `begun`: the last of its
    beginnings."""

    occupied: dict[str, facts.ReplicaBegun] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    serving: dict[str, int] = field(default_factory=dict)
    vacated: dict[str, int] = field(default_factory=dict)
    alive: dict[str, int] = field(default_factory=dict)

    def take(self, fact: facts.Fact) -> None:
        match fact:
            case facts.ReplicasAlive(at_ns=at_ns):
                for replica_id in fact.replica_ids:
                    self.alive[replica_id] = max(at_ns, self.alive.get(replica_id, 0))
            case facts.ReplicaBegun(replica_id=replica_id):
                before = self.occupied.get(replica_id)
                self.occupied[replica_id] = fact if before is None or fact.at_ns < before.at_ns else before
                self.begun[replica_id] = max(fact.at_ns, self.begun.get(replica_id, 0))
            case facts.ReplicaReady(at_ns=at_ns, replica_id=replica_id):
                self.serving[replica_id] = min(at_ns, self.serving.get(replica_id, at_ns))
            case facts.ReplicaGone(at_ns=at_ns, replica_id=replica_id):
                self.vacated[replica_id] = max(at_ns, self.vacated.get(replica_id, 0))

    def lives(self, watched_until: Mapping[str, int]) -> dict[str, ReplicaLife]:
        """`watched_until`: by replica, up to when a gateway heard from it."""
        return {
            replica_id: ReplicaLife(
                replica_id,
                one.model,
                one.group,
                one.at_ns,
                max(one.at_ns, self._end(replica_id, watched_until.get(replica_id))),
                self.serving.get(replica_id),
            )
            for replica_id, one in self.occupied.items()
        }

    def _end(self, replica_id: str, watched_ns: int | None) -> int:
        """The end of a replica, or how far its time is known. Where gateways live, the directory's last word is a
        little ahead of theirs: that little is left for later."""
        vacated_ns, alive_ns = self.vacated.get(replica_id), self.alive.get(replica_id, 0)
        if vacated_ns is not None and self.begun[replica_id] <= vacated_ns:
            return vacated_ns  # also if a clock that was ahead made it alive later
        return watched_ns if watched_ns is not None and alive_ns - LAG_NS < watched_ns < alive_ns else alive_ns
