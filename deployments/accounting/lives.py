"""The replicas of a cell as the directory knows them, as facts of a bill. Pure: what is heard of comes in with its
time, new facts come out."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from deployments.accounting.facts import (
    NS,
    Fact,
    ReplicaBegun,
    ReplicaGone,
    ReplicaReady,
    ReplicasAlive,
    Tariff,
    tariff_at,
)


class ReplicaLives:
    """Those that have their GPUs, or had them in an hour that is open, and the tariffs with which they began. `known`:
    what an earlier directory knew, in its order. Of these, one that has not spoken to this directory is not known to be
    alive."""

    def __init__(self, known: Iterable[Fact] = ()) -> None:
        self._begun: dict[str, ReplicaBegun] = {}
        self._ready: dict[str, ReplicaReady] = {}
        self._tariffs: dict[tuple[str, str], list[Tariff]] = {}
        """Of each model and group those that a replica began with, and the newest; oldest first."""
        self._ended: dict[str, tuple[ReplicaBegun, ReplicaReady | None, ReplicaGone]] = {}
        self._alive: dict[str, int] = {}
        """When the earlier directory last said so."""
        self._unheard: set[str] = set()
        for fact in known:
            match fact:
                case ReplicaBegun():
                    self.starting(fact.replica_id, fact.model, fact.group, fact.at_ns)
                case ReplicaReady(replica_id=replica_id):
                    self._ready[replica_id] = fact
                case ReplicaGone(at_ns=at_ns, replica_id=replica_id):
                    self.gone(replica_id, at_ns)
                case ReplicasAlive(at_ns=at_ns, replica_ids=replica_ids):
                    self._alive.update(dict.fromkeys(replica_ids, at_ns))
                case Tariff():
                    self._tariffs.setdefault((fact.model, fact.group), []).append(fact)
                case _:
                    pass
        self._unheard = set(self._begun)

    def carried(self, hour_ns: int) -> list[Fact]:
        """What is to be known when all facts up to that hour are gone. A replica that ended in it or later is, too."""
        self._ended = {key: ended for key, ended in self._ended.items() if ended[-1].at_ns >= hour_ns}
        begun = [*(ended[0] for ended in self._ended.values()), *self._begun.values()]
        for key, known in self._tariffs.items():
            starts = (one.at_ns for one in begun if (one.model, one.group) == key)
            needed = {tariff_at(known, at_ns).at_ns for at_ns in starts} | {known[-1].at_ns}
            self._tariffs[key] = [one for one in known if one.at_ns in needed]
        tariffs = (one for known in self._tariffs.values() for one in known)
        rest = (fact for ended in self._ended.values() for fact in ended[1:] if fact is not None)
        return [*tariffs, *begun, *self._ready.values(), *rest]

    def starting(self, replica_id: str, model: str, group: str, at_ns: int) -> list[Fact]:
        """It has had its GPUs since `at_ns`. Of one that is known, only an earlier beginning is news. One that was
        given up had not ended."""
        self._unheard.discard(replica_id)
        known = self._begun.get(replica_id)
        if known is not None and at_ns > known.at_ns - NS:
            return []
        begun, ready, gone = self._ended.pop(replica_id, (None, None, None))
        fact = ReplicaBegun(at_ns if gone is None else max(at_ns, gone.at_ns + 1), replica_id, model, group)
        self._begun[replica_id] = begun or fact
        if ready is not None:
            self._ready[replica_id] = ready
        return [fact]

    def serving(self, replica_id: str, model: str, group: str, at_ns: int) -> list[Fact]:
        """It serves. Of one that is not known, nothing before is; the clock may have gone back since a known one
        began."""
        self._unheard.discard(replica_id)
        facts = [] if replica_id in self._begun else self.starting(replica_id, model, group, at_ns)
        if replica_id in self._ready:
            return facts
        fact = self._ready[replica_id] = ReplicaReady(at_ns, replica_id)
        return [*facts, fact]

    def gone(self, replica_id: str, at_ns: int) -> list[Fact]:
        """It has ended; one that is not known is no error."""
        ready, begun = self._ready.pop(replica_id, None), self._begun.pop(replica_id, None)
        if begun is None:
            return []
        fact = ReplicaGone(max(at_ns, begun.at_ns), replica_id)
        self._ended[replica_id] = begun, ready, fact
        return [fact]

    def stopped(self, running: Collection[str], at_ns: int) -> list[Fact]:
        """Of those that start, only `running` still do: the others were stopped."""
        others = self._begun.keys() - self._ready.keys() - self._unheard - set(running)
        gone = [key for key in self._begun if key in others]
        return [fact for key in gone for fact in self.gone(key, at_ns)]

    def forget_unheard(self) -> None:
        """Those that have not spoken to this directory ended with the last one: they are paid for up to its last word
        of them."""
        while self._unheard:
            replica_id = self._unheard.pop()
            self.gone(replica_id, self._alive.get(replica_id, 0))

    def priced(self, tariffs: Iterable[Tariff]) -> list[Fact]:
        """What gateways say that replicas cost; the same again is no news. A new price is later than the one before,
        whatever the clock says."""
        news: list[Fact] = []
        for tariff in tariffs:
            known = self._tariffs.setdefault((tariff.model, tariff.group), [])
            if not known or replace(tariff, at_ns=known[-1].at_ns) != known[-1]:
                after_ns = known[-1].at_ns + 1 if known else 0
                known.append(replace(tariff, at_ns=max(tariff.at_ns, after_ns)))
                news.append(known[-1])
        return news

    def alive(self, at_ns: int) -> ReplicasAlive:
        return ReplicasAlive(at_ns, tuple(one for one in self._begun if one not in self._unheard))
