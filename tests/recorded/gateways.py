"""Gateways, replicas and clients around owners that follow one another: the writer of `owners.jsonl.gz`.

Three gateways reach the owner over channels that break; replicas come, drain, fall silent and die; owners are replaced,
and the next one hears from holders and replicas what stands, in any order. What happens is drawn from a seed, mostly as
a cell does it, and sometimes twice or too late.
"""

from collections.abc import Callable

from tests.recorded.holders import GATEWAYS, Holders
from tests.recorded.runs import POLICY, TENANTS, lane
from tests.recorded.scheduler_adapter import Plain

SEATS = 8
POLICIES: tuple[Plain, ...] = (
    {**POLICY, "max_waiting": 60},
    {**POLICY, "lanes": [lane("short", 100, 4.0, 2.0), lane("long", None, 1.0, 4.0, 20.0)], "tenants": TENANTS},
    {**POLICY, "lanes": [lane("all", None, 1.0, 3.0)], "order": "arrival", "max_waiting": 30},
)
BINDINGS = ({"ahead": 0.0, "prefill_steps": 1.0}, {"ahead": 0.5, "prefill_steps": 2.0})


class Gateways(Holders):
    """See the module's docstring."""

    def run(self) -> list[Plain]:
        """Runs until there are enough inputs."""
        self._new_owner()
        for _ in range(3):
            self._replica_comes()
        acts: tuple[tuple[float, Callable[[], None]], ...] = (
            (40.0, self._ask),
            (30.0, self._first_token),
            (22.0, self._finish),
            (3.0, self._fail),
            (3.0, self._cancel),
            (3.0, self._refuse),
            (2.0, self._twice),
            (1.0, self._channel_breaks),
            (1.0, self._state),
            (0.6, self._replica_dies),
            (0.6, self._replica_comes),
            (0.5, self._drain),
            (0.6, self._cordon),
            (0.5, self._reload),
            (0.3, self._expect),
            (0.4, self._new_owner),
        )
        while len(self.lines) < self.inputs:
            self.now = round(self.now + self.dice.expovariate(25.0), 3)
            if self.owner.due_s is not None and self.owner.due_s <= self.now:
                self._tell("ring")
            self.dice.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()
            if len(self.lines) % 97 == 0:
                self.lines.append({"at": self.now, "books": self.owner.books()})
        return self.lines

    # Channels and owners

    def _channel_breaks(self) -> None:
        """A gateway's channel ends, and mostly another opens; or the gateway is gone, and its clients with it."""
        gateway = self.dice.choice(GATEWAYS)
        before = self._channel(gateway)
        self.channels[gateway] += 1
        first = self.dice.random() < 0.5
        if first:
            self._tell("left", gateway=before)
        if self.dice.random() < 0.2:
            for name in [name for name, one in self.requests.items() if one["gateway"] == gateway]:
                del self.requests[name]
        self._tell("join", gateway=self._channel(gateway), channel=self.channels[gateway])
        if not first:
            self._tell("left", gateway=before)
        self._reclaim(gateway)

    def _reclaim(self, gateway: str) -> None:
        """Says to the owner what this gateway holds."""
        for name, one in list(self.requests.items()):
            if one["gateway"] == gateway and name in self.requests:
                if one["engine_id"] is not None:
                    self._tell("hold", gateway=self._channel(gateway), engine_id=one["engine_id"])
                else:
                    again = {**one["asked"], "attempts": one["attempt"]}
                    self._tell("submit", gateway=self._channel(gateway), request=again, admitted=True)

    def _new_owner(self) -> None:
        if self.epoch:
            self._tell("close")
        self.epoch += 1
        self._tell("begin", policy=POLICIES[0], binding=BINDINGS[0], epoch=self.epoch)
        self._tell("cordon", replicas=sorted(self.cordoned))
        words: list[Callable[[], None]] = []
        for gateway in GATEWAYS:
            self.channels[gateway] += 1
            words.append(lambda gateway=gateway: self._greet(gateway))  # type: ignore[misc]
        words += [lambda name=name: self._ready(name) for name in self.runs]  # type: ignore[misc]
        self.dice.shuffle(words)
        for word in words:
            word()

    def _greet(self, gateway: str) -> None:
        self._tell("join", gateway=self._channel(gateway), channel=self.channels[gateway])
        self._reclaim(gateway)

    # Replicas and operators

    def _ready(self, name: str) -> None:
        if name in self.runs:
            self._tell("replica_ready", replica=name, seats=SEATS, runs=[dict(run) for run in self.runs[name].values()])
            if name in self.drains:
                self._tell("replica_state", replica=name, state="draining")

    def _replica_comes(self) -> None:
        if len(self.runs) < 6:
            self.names += 1
            name = f"r{self.names}"
            self.runs[name] = {}
            self._ready(name)

    def _replica_dies(self) -> None:
        if len(self.runs) < 2:
            return
        name = self.dice.choice(sorted(self.runs))
        reported_first = self.dice.random() < 0.5
        del self.runs[name]
        self.drains.discard(name)
        if reported_first:
            self._tell("replica_gone", replica=name)
        for request_id, one in list(self.requests.items()):
            if one["engine_id"] is not None and one["replica"] == name:
                if one["started"]:
                    del self.requests[request_id]
                    self._tell("release", engine_id=one["engine_id"], ending="failed")
                else:
                    attempt_id, one["engine_id"] = one["engine_id"], None
                    self._tell("died_under", engine_id=attempt_id)
                    self._tell("refused", gateway=self._channel(one["gateway"]), engine_id=attempt_id, state=None)
        if not reported_first:
            self._tell("replica_gone", replica=name)

    def _state(self) -> None:
        name = self.dice.choice(sorted(self.runs))
        self._tell("replica_state", replica=name, state=self.dice.choice((None, "unhealthy")))
        if self.dice.random() < 0.9:
            self._ready(name)

    def _drain(self) -> None:
        name = self.dice.choice(sorted(self.runs))
        if len(self.runs) - len(self.drains) > 1:
            self.drains.add(name)
            self._tell("replica_state", replica=name, state="draining")

    def _cordon(self) -> None:
        self.cordoned = [name for name in sorted(self.runs) if self.dice.random() < 0.2]
        self._tell("cordon", replicas=self.cordoned)

    def _reload(self) -> None:
        self._tell("reload", policy=self.dice.choice(POLICIES), binding=self.dice.choice(BINDINGS))

    def _expect(self) -> None:
        self._tell("expect", ready_at_s=self.dice.choice((None, round(self.now + 5.0, 3), round(self.now + 90.0, 3))))
