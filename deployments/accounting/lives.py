"""The replicas of a cell as the directory knows them, as facts of a bill. Pure: what is heard of comes in with its
time, new facts come out."""

from collections.abc import Collection, Iterable

from deployments.accounting.facts import NS, Fact, ReplicaBegun, ReplicaGone, ReplicaReady, ReplicasAlive, Tariff


class ReplicaLives:
    """Those that have their GPUs, and the tariffs in force. `known`: what an earlier directory knew (`carried`)."""

    def __init__(self, known: Iterable[Fact] = ()) -> None:
        self._begun: dict[str, ReplicaBegun] = {}
        self._ready: dict[str, ReplicaReady] = {}
        self._tariffs: dict[tuple[str, str], Tariff] = {}
        for fact in known:
            match fact:
                case ReplicaBegun(replica_id=replica_id):
                    self._begun[replica_id] = fact
                case ReplicaReady(replica_id=replica_id):
                    self._ready[replica_id] = fact
                case Tariff():
                    self._tariffs[fact.model, fact.group] = fact
                case _:
                    pass

    def carried(self) -> list[Fact]:
        """What each hour's file begins with, so that no earlier one is needed."""
        return [*self._tariffs.values(), *self._begun.values(), *self._ready.values()]

    def starting(self, replica_id: str, model: str, group: str, at_ns: int) -> list[Fact]:
        """It has had its GPUs since `at_ns`. Of one that is known, only an earlier beginning is news."""
        known = self._begun.get(replica_id)
        if known is not None and at_ns > known.at_ns - NS:
            return []
        fact = self._begun[replica_id] = ReplicaBegun(at_ns, replica_id, model, group)
        return [fact]

    def serving(self, replica_id: str, model: str, group: str, at_ns: int) -> list[Fact]:
        """It serves. Of one that is not known, nothing before is."""
        facts = self.starting(replica_id, model, group, at_ns)
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
        gone = [key for key in self._begun if key not in self._ready and key not in running]
        return [fact for key in gone for fact in self.gone(key, at_ns)]

    def priced(self, tariffs: Iterable[Tariff]) -> list[Fact]:
        """What gateways say that replicas cost; the same again is no news."""
        news: list[Fact] = []
        for tariff in tariffs:
            key, known = (tariff.model, tariff.group), self._tariffs.get((tariff.model, tariff.group))
            if known is None or _without_time(known) != _without_time(tariff):
                self._tariffs[key] = tariff
                news.append(tariff)
        return news

    def alive(self, at_ns: int) -> ReplicasAlive:
        return ReplicasAlive(at_ns, tuple(self._begun))


def _without_time(tariff: Tariff) -> tuple[object, ...]:
    return tuple(getattr(tariff, name) for name in tariff.__slots__ if name != "at_ns")
