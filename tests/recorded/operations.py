"""A pretended cell that drives a scheduler and writes down every input with its decision: the writer of
`scheduler.jsonl.gz`.

Clients, replicas and operators in virtual time, drawn from a seed: mostly what a busy cell sees, and now and then what
it should not (a lease that ends twice, a request that asks twice, a replica that dies while it ran a deadly prompt).
What the cell does next depends on what the scheduler decided, so it is only run to record; the replay feeds the
recorded inputs alone.
"""

import heapq

from tests.recorded.cell import GATEWAYS, Cell, Replica, Run
from tests.recorded.scheduler_adapter import Plain


class OperatedCell(Cell):
    """Replicas that come and go, operators, and owners that follow one another."""

    def run(self) -> list[Plain]:
        """Runs until there are enough inputs."""
        settings = self.settings
        for number in range(settings.replicas):
            self._after(0.2 * number, self._new_replica)
        self._after(0.5, self._arrive)
        events = (
            (settings.deaths, self._death),
            (settings.drains, self._drain),
            (settings.silences, self._feed_outage),
            (settings.cordons, self._cordon),
            (settings.reloads, self._reload),
            (settings.owners, self._change_owner),
            (settings.bursts, self._burst),
            (settings.empties, self._empty),
            (settings.gateways_leave, self._gateway_leaves),
        )
        for rate, event in events:
            if rate:
                self._repeat(rate, event)
        while len(self.lines) < settings.inputs:
            at_s, _, act = heapq.heappop(self._due)
            if self._wake_s is not None and self._wake_s <= at_s:
                heapq.heappush(self._due, (at_s, _, act))
                self.now = max(self.now, round(self._wake_s + 0.0005, 3))
                self._step()
                continue
            self.now = max(self.now, at_s)
            act()
            if self.dice.random() < 0.9:  # now and then two things happen before a step
                self._step()
            if len(self.lines) % 199 == 0:
                self._tell("snapshot", etas=self.dice.random() < 0.7)
        return self.lines

    def _new_replica(self) -> None:
        settings = self.settings
        number = self._names
        seats = settings.seats[number % len(settings.seats)]
        replica = Replica(self._name("r"), seats, settings.kv_tokens[number % len(settings.kv_tokens)])
        replica.speed = self.dice.choice((1.0, 1.0, 1.0, 0.9, 0.25))
        self.replicas[replica.name] = replica
        self._ready(replica)

    def _ready(self, replica: Replica) -> None:
        replica.status = "ready"
        ahead, prefill_steps = self.binding
        self._tell(
            "replica_ready",
            replica=replica.name,
            engine={
                "sequences": replica.seats,
                "kv_tokens": replica.kv_tokens,
                "step_tokens": self.settings.step_tokens,
            },
            binding={"ahead": ahead, "prefill_steps": prefill_steps},
        )

    def _any(self, status: str = "ready") -> Replica | None:
        known = [one for one in self.replicas.values() if one.status == status]
        return self.dice.choice(known) if known else None

    def _death(self) -> None:
        replica = self._any()
        if replica is not None:
            self._dies(replica.name)

    def _dies(self, name: str) -> None:
        """In pieces, as a cell hears of it: some leases break, the feed ends, the process is gone. Or it only looked
        so, and it is back."""
        dice, replica = self.dice, self.replicas.get(name)
        if replica is None:
            return
        on_it = [number for number, one in self.running.items() if one.lease["replica"] == name]
        for number in on_it:
            if dice.random() < 0.5:
                self._tell("died_under", lease=number)
                if dice.random() < 0.5:
                    self._release(number, "failed")
                elif not self.running[number].started:
                    self._refused(number)
        self._tell("replica_silent", replica=name)
        replica.status = "silent"
        if dice.random() < 0.15:
            self._after(2.0, lambda: self._ready(replica) if name in self.replicas else None)
        else:
            self._after(dice.choice((0.0, 0.3, 5.0)), lambda: self._gone(name))
            self._after(dice.choice((3.0, 12.0)), self._new_replica)

    def _gone(self, name: str) -> None:
        if self.replicas.pop(name, None) is None:
            return
        for number in self._tell("replica_gone", replica=name):
            one = self.running.pop(number)
            if self.dice.random() < 0.7 and len(one.request["id"]) < 12:
                self._after(0.1, lambda one=one: self._submit(self._again(one.request), one.gateway))  # type: ignore[misc]

    def _drain(self) -> None:
        replica = self._any()
        if replica is not None:
            replica.status = "draining"
            self._tell("replica_draining", replica=replica.name)
            self._after(8.0, lambda: self._gone(replica.name))
            self._after(self.dice.choice((1.0, 9.0)), self._new_replica)

    def _feed_outage(self) -> None:
        replica = self._any() or self._any("silent")
        if replica is None:
            return
        replica.status = "silent"
        self._tell("replica_silent", replica=replica.name)
        self._after(
            self.dice.choice((0.2, 3.0)), lambda: self._ready(replica) if replica.name in self.replicas else None
        )

    def _cordon(self) -> None:
        name = self.dice.choice([*self.replicas, "r9999"])
        if name in self.cordoned:
            self.cordoned.remove(name)
            self._tell("replica_uncordoned", replica=name)
        else:
            self.cordoned.add(name)
            self._tell("replica_cordoned", replica=name)
            self._after(6.0, lambda: self._uncordon(name))

    def _uncordon(self, name: str) -> None:
        self.cordoned.discard(name)
        self._tell("replica_uncordoned", replica=name)

    def _reload(self) -> None:
        self.policy = self.dice.choice(self.settings.policies)
        self._tell("reload", policy=self.policy)
        self.binding = self.dice.choice(self.settings.bindings)
        for replica in self.replicas.values():
            if replica.status == "ready":
                self._ready(replica)

    def _burst(self) -> None:
        self._burst_until_s = self.now + self.dice.choice((0.5, 3.0))

    def _empty(self) -> None:
        for replica in list(self.replicas.values()):
            replica.status = "draining"
            self._tell("replica_draining", replica=replica.name)
            self._after(3.0, lambda name=replica.name: self._gone(name))  # type: ignore[misc]
        in_s = self.dice.choice((2.0, 15.0, 90.0))
        self._after(1.0, lambda: self._tell("replica_expected", ready_at_s=round(self.now + in_s, 3)))
        self._after(
            5.0,
            lambda: self._tell(
                "replica_expected", ready_at_s=self.dice.choice((None, round(self.now + 1.5 * in_s, 3)))
            ),
        )
        for number in range(self.settings.replicas):
            self._after(min(in_s, 20.0) + number, self._new_replica)

    def _gateway_leaves(self) -> None:
        """Its clients are gone; what runs for it runs on."""
        gateway = self.dice.choice(GATEWAYS)
        for request_id in [name for name, (_, submitter) in self.waiting.items() if submitter == gateway]:
            self._cancel(request_id)
        for one in self.running.values():
            one.orphan = one.orphan or one.gateway == gateway

    def _change_owner(self) -> None:
        """Another gateway decides from now on: it has what replicas and holders tell."""
        ran, waited = list(self.running.values()), list(self.waiting.values())
        self.running, self.waiting, self.ended = {}, {}, []
        self._begin("owner")
        for key, deaths, answered, since_s in self.suspects.values():
            if deaths:
                self._tell("recall_suspect", key=key, deaths=deaths, answered=answered, since_s=since_s)
        for name in sorted(self.cordoned):
            self._tell("replica_cordoned", replica=name)
        self.dice.shuffle(waited)
        half = len(waited) // 2
        for request, gateway in waited[:half]:
            self._submit(request, gateway, admitted=True)
        for replica in list(self.replicas.values()):
            if replica.status != "draining" or self.dice.random() < 0.5:
                self._adopt_replica(replica, ran)
        for request, gateway in waited[half:]:
            self._submit(request, gateway, admitted=True)

    def _adopt_replica(self, replica: Replica, ran: list[Run]) -> None:
        draining = replica.status == "draining"
        self._ready(replica)
        for one in ran:
            if one.lease["replica"] == replica.name:
                reported = {**one.lease, "request": one.request}
                adopted = self._tell("adopt", lease=reported, started=one.started)
                self._placed(Run(adopted, one.request, one.gateway, one.started, one.orphan))
        if draining:
            replica.status = "draining"
            self._tell("replica_draining", replica=replica.name)
