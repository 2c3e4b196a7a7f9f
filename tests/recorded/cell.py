"""Clients and leases of a pretended cell that drives a scheduler and keeps every input with its decision
(`operations.py` has the rest of it)."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.recorded.runs import Settings
from tests.recorded.scheduler_adapter import BOOKED, Plain, RecordedScheduler

CHUNK_TOKENS = 64
GATEWAYS = ("g1", "g2", "g3")
LEASE_FIELDS = ("lease", "request", "replica", *BOOKED)


@dataclass
class Replica:
    name: str
    seats: int
    kv_tokens: int
    status: str = "ready"
    speed: float = 1.0


@dataclass
class Run:
    """A lease that stands, with what its client is."""

    lease: Plain
    request: Plain
    gateway: str
    started: bool = False
    orphan: bool = False


@dataclass
class Cell:
    """Virtual time, drawn from a seed. `lines` are what is recorded."""

    settings: Settings
    seed: int
    lines: list[Plain] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.settings.name} {self.seed}")
        self.now = 100.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._names = 0
        self._wake_s: float | None = None
        self._burst_until_s = 0.0
        self.policy = self.settings.policies[0]
        self.binding = self.settings.bindings[0]
        self.replicas: dict[str, Replica] = {}
        self.cordoned: set[str] = set()
        self.waiting: dict[str, tuple[Plain, str]] = {}
        self.running: dict[int, Run] = {}
        self.ended: list[int] = []
        self.suspects: dict[str, list[Any]] = {}
        self._begin("start")

    # What is recorded

    def _begin(self, why: str) -> None:
        """A scheduler from an empty state."""
        self.scheduler = RecordedScheduler(self.policy)
        self.lines.append({"run": self.settings.name, "begins": why, "policy": self.policy})

    def _tell(self, name: str, /, **given: Any) -> Any:
        decision = self.scheduler.apply(name, given, self.now)
        self.lines.append({"at": self.now, "input": name, "with": given, "decision": decision})
        return decision

    def _step(self) -> None:
        decided = self._tell("step")
        self._wake_s = decided["wake_s"]
        for request_id in decided.get("expired", ()):
            del self.waiting[request_id]
        for request_id, admission in decided.get("turned_away", ()):
            request, gateway = self.waiting.pop(request_id)
            self._maybe_again(request, gateway, admission)
        for key, *standing in decided.get("suspects", ()):
            self.suspects[key] = [key, *standing]
        for placed in decided.get("placed", ()):
            request, gateway = self.waiting.pop(placed["request"])
            self._placed(Run({key: placed[key] for key in LEASE_FIELDS}, request, gateway))

    # Clients

    def _arrive(self) -> None:
        settings, dice = self.settings, self.dice
        seats = sum(settings.seats[n % len(settings.seats)] for n in range(settings.replicas))
        per_s = settings.load * seats / 4.0 * (4.0 if self.now < self._burst_until_s else 1.0)
        self._after(dice.expovariate(per_s), self._arrive)
        if dice.random() < settings.hostile and (self.waiting or self.running):
            self._ask_twice()
            return
        tenant = dice.choices(settings.tenants, settings.tenant_weights)[0]
        interactive = dice.random() < 0.7
        prompt = int(
            min(
                settings.longest_prompt,
                max(1.0, dice.lognormvariate(0.0, settings.prompt_sigma) * settings.prompt_median),
            )
        )
        prefix: list[int] = []
        if settings.sessions and dice.random() < 0.7:
            session = min(int(dice.paretovariate(0.8)), settings.sessions)
            prefix = [session * 1_000 + chunk for chunk in range(min(prompt // CHUNK_TOKENS, dice.choice((4, 12, 40))))]
        arrived = round(self.now - dice.choice((0.0, 0.0, 0.001, 0.02)), 3)
        patience = settings.patience_s * dice.choice((0.1, 0.5, 1.0, 1.0, 3.0))
        self._submit(
            {
                "id": self._name("q"),
                "prompt_tokens": prompt,
                "max_tokens": dice.choice((None, 16, 128, 256, 512, 1_024)),
                "arrived_s": arrived,
                "deadline_s": round(arrived + (2.0 if interactive else 30.0), 3),
                "expires_s": round(arrived + patience, 3),
                "sequences": dice.choice((1,) * 30 + (2, 4)),
                "class": "interactive" if interactive else "batch",
                "tenant": tenant,
                "prefix": prefix,
                "chunk_tokens": CHUNK_TOKENS if prefix else 0,
                "attempts": 0,
                "digest": self._digest(),
            },
            dice.choice(GATEWAYS),
        )

    def _digest(self) -> str:
        if self.dice.random() < self.settings.deadly:
            return f"deadly{self.dice.randrange(3)}"
        return f"body{self.dice.randrange(10_000)}" if self.dice.random() < 0.8 else ""

    def _submit(self, request: Plain, gateway: str, admitted: bool = False) -> None:
        admission = self._tell("submit", request=request, admitted=admitted)
        if admission["kind"] in ("admit", "queue"):
            self.waiting[request["id"]] = (request, gateway)
            if self.dice.random() < self.settings.cancels:
                self._after(self.dice.choice((0.05, 1.0, 10.0)), lambda: self._cancel(request["id"]))
        else:
            self._maybe_again(request, gateway, admission)

    def _maybe_again(self, request: Plain, gateway: str, admission: Plain) -> None:
        """A client that was rejected comes back with the same body, at the time that it was told or too early."""
        if self.dice.random() < 0.3 and len(request["id"]) < 12:
            wait_s = min(60.0, (admission["retry_after_s"] or 1.0) * self.dice.choice((0.3, 1.0, 1.5)))
            self._after(wait_s, lambda: self._submit(self._again(request), gateway))

    def _again(self, request: Plain) -> Plain:
        patience, slo = request["expires_s"] - request["arrived_s"], request["deadline_s"] - request["arrived_s"]
        times = {
            "arrived_s": self.now,
            "deadline_s": round(self.now + slo, 3),
            "expires_s": round(self.now + patience, 3),
        }
        return {**request, "id": request["id"] + "r", "attempts": 0, **times}

    def _ask_twice(self) -> None:
        known = [request for request, _ in self.waiting.values()] + [one.request for one in self.running.values()]
        self._tell("submit", request=self.dice.choice(known), admitted=False)

    def _cancel(self, request_id: str) -> None:
        if self._tell("cancel", request=request_id):
            del self.waiting[request_id]
            return
        for number, one in self.running.items():
            if one.request["id"] == request_id:
                self._release(number, "cancelled")
                return

    # Leases

    def _placed(self, one: Run) -> None:
        self.running[one.lease["lease"]] = one
        self._fate(one)

    def _fate(self, one: Run) -> None:
        """What will become of a lease."""
        dice, settings, number = self.dice, self.settings, one.lease["lease"]
        scheduler = self.scheduler
        replica = self.replicas.get(one.lease["replica"])
        if replica is None:
            return
        if replica.status == "draining" or dice.random() < settings.refusals:
            self._of(scheduler, 0.01, number, lambda: self._refused(number))
            return
        prefill_s = one.lease["prefill_tokens"] / 20_000.0 / replica.speed + 0.02 * dice.random()
        output = one.request["max_tokens"] or 700
        output = output if dice.random() < 0.3 else dice.randint(1, output)
        decode_s = output * 0.01 * dice.uniform(0.8, 1.3) / replica.speed
        if one.request["digest"].startswith("deadly"):
            self._of(scheduler, prefill_s * 1.5, number, lambda: self._dies(one.lease["replica"]))
            return
        if dice.random() < settings.failures:
            self._of(
                scheduler,
                dice.choice((0.3, 1.0)) * (prefill_s + decode_s),
                number,
                lambda: self._release(number, "failed"),
            )
            return
        if dice.random() >= settings.whole_answers and not one.started:
            self._of(scheduler, prefill_s, number, lambda: self._first_token(number))
        self._of(scheduler, prefill_s + decode_s, number, lambda: self._finish(number, output, prefill_s, decode_s))

    def _first_token(self, number: int) -> None:
        one = self.running[number]
        if not one.orphan:
            one.started = True
            self._tell("first_token", lease=number)

    def _finish(self, number: int, output: int, prefill_s: float, decode_s: float) -> None:
        dice, one = self.dice, self.running[number]
        sequences = one.request["sequences"]
        prompt = one.request["prompt_tokens"] * sequences
        usage = {
            "prompt_tokens": int(prompt * dice.choice((1.0, 1.0, 0.9, 1.2))),
            "cached_tokens": CHUNK_TOKENS * dice.randint(0, len(one.request["prefix"])),
            "output_tokens": output * sequences,
            "preemptions": dice.choice((0, 0, 0, 1)),
            "sequences": sequences if dice.random() > 0.01 else 0,
            "prefill_s": round(prefill_s, 6),
            "decode_s": round(decode_s, 6),
        }
        kind = dice.random()
        if kind < 0.5:
            self._release(number, "finished", usage)
        elif kind < 0.8:
            self._tell("learn", lease=number, usage=usage)
            self._release(number, "finished")
        else:
            self._release(number, "finished")
            self._of(self.scheduler, 0.05, None, lambda: self._tell("learn", lease=number, usage=usage))

    def _release(self, number: int, ending: str, usage: Plain | None = None) -> None:
        self._tell("release", lease=number, ending=ending, usage=usage)
        one = self.running.pop(number)
        self.ended.append(number)
        if ending == "failed" and self.dice.random() < 0.5 and len(one.request["id"]) < 12:
            self._after(0.5, lambda: self._submit(self._again(one.request), one.gateway))
        if self.dice.random() < self.settings.hostile:
            late = self.dice.choice(self.ended[-40:])
            self._tell("release", lease=late, ending=self.dice.choice(("finished", "failed", "refused")), usage=None)
            self._tell("first_token", lease=late)

    def _refused(self, number: int) -> None:
        """The replica took no work: the request waits again."""
        if self.running[number].orphan:
            self._release(number, "failed")
            return
        one = self.running.pop(number)
        self._tell("release", lease=number, ending="refused", usage=None)
        self.waiting[one.request["id"]] = (one.request, one.gateway)
        self.ended.append(number)

    def _dies(self, name: str) -> None:
        """A replica dies."""
        raise NotImplementedError

    # Time

    def _after(self, in_s: float, act: Callable[[], object]) -> None:
        self._order += 1
        heapq.heappush(self._due, (round(self.now + in_s, 3), self._order, lambda: (act(), None)[1]))

    def _of(self, scheduler: RecordedScheduler, in_s: float, number: int | None, act: Callable[[], object]) -> None:
        """As long as that scheduler decides, and that lease stands."""

        def only_then() -> None:
            if scheduler is self.scheduler and (number is None or number in self.running):
                act()

        self._after(in_s, only_then)

    def _repeat(self, per_s: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self._after(self.dice.expovariate(per_s), again)

        self._after(self.dice.expovariate(per_s), again)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"
