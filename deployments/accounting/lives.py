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
    """Those that have their GPUs, and the tariffs with which they began. `known`: what an earlier directory knew
    (`carried`). Of these, one that has not spoken to this directory is not known to be alive."""

    def __init__(self, known: Iterable[Fact] = ()) -> None:
        self._begun: dict[str, ReplicaBegun] = {}
        self._ready: dict[str, ReplicaReady] = {}
        self._tariffs: dict[tuple[str, str], list[Tariff]] = {}
        """Of each model and group those that a replica began with, and the newest; oldest first."""
        for fact in known:
            match fact:
                case ReplicaBegun(replica_id=replica_id):
                    self._begun[replica_id] = fact
                case ReplicaReady(replica_id=replica_id):
                    self._ready[replica_id] = fact
                case Tariff():
                    self._tariffs.setdefault((fact.model, fact.group), []).append(fact)
                case _:
                    pass
        self._unheard = set(self._begun)

    def carried(self) -> list[Fact]:
        """What each hour's file begins with, so that no earlier one is needed."""
        for key, known in self._tariffs.items():
            begun = (one.at_ns for one in self._begun.values() if (one.model, one.group) == key)
            needed = {tariff_at(known, at_ns).at_ns for at_ns in begun} | {known[-1].at_ns}
            self._tariffs[key] = [one for one in known if one.at_ns in needed]
        tariffs = (one for known in self._tariffs.values() for one in known)
        return [*tariffs, *self._begun.values(), *self._ready.values()]

    def starting(self, replica_id: str, model: str, group: str, at_ns: int) -> list[Fact]:
        """It has had its GPUs since `at_ns`. Of one that is known, only an earlier beginning is news."""
        self._unheard.discard(replica_id)
        known = self._begun.get(replica_id)
        if known is not None and at_ns > known.at_ns - NS:
            return []
        fact = self._begun[replica_id] = ReplicaBegun(at_ns, replica_id, model, group)
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
        self._ready.pop(replica_id, None)
        known = self._begun.pop(replica_id, None)
        return [] if known is None else [ReplicaGone(max(at_ns, known.at_ns), replica_id)]

    def stopped(self, running: Collection[str], at_ns: int) -> list[Fact]:
        """Of those that start, only `running` still do: the others were stopped."""
        others = self._begun.keys() - self._ready.keys() - self._unheard - set(running)
        gone = [key for key in self._begun if key in others]
        return [fact for key in gone for fact in self.gone(key, at_ns)]

    def forget_unheard(self) -> None:
        """Those that have not spoken to this directory ended with the last one: they are paid for up to its last word
        of them."""
        while self._unheard:
            self.gone(self._unheard.pop(), 0)

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
