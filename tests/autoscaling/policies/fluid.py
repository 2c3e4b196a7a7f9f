"""A small plant for tests of policies: a queue and replicas as fluids, which makes signals from a rate of arrivals. No
engine, no scheduler.

    arrivals flow into one lane; a replica takes up to `slots` requests and has each for `service_s`; so it serves slots
    / service_s a second at most a replica that is asked for is ready after `start_up_s`; one that is taken away goes at
    once, those that start first, and its requests with it into the others, or back to the lane

Far from an engine, and enough to see whether a policy sees what it should, moves the right way, and comes to rest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from autoscaling.policies.policy import ReplicaProfile, ScalingPolicy
from autoscaling.signals.signals import Signals
from deployments.scheduling import ReplicaStats
from deployments.scheduling.replica import ReplicaStatus
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.facts import lane_like, replica_like, signals_like
from tests.autoscaling.policies.moments import COST, LIMITS

_STEP_S = 0.5


@dataclass
class Fluid:
    """The plant. `rate` is requests a second at a time; requests have `isl` and `osl` tokens."""

    rate: Callable[[float], float]
    replicas: int
    start_up_s: float = 40.0
    slots: int = LIMITS.sequences
    service_s: float = 8.0
    isl: int = 800
    osl: int = 200
    decode_weight: float = 4.0
    now: float = 0.0
    waiting: float = 0.0
    running: float = 0.0
    arrived: float = 0.0
    ended: float = 0.0
    ready: int = field(init=False)
    _ready_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ready = self.replicas

    @property
    def replica_profile(self) -> ReplicaProfile:
        """What a policy is told of a replica."""
        return ReplicaProfile(LIMITS, self.decode_weight, COST, self.start_up_s)

    @property
    def replica_rate(self) -> float:
        """Requests a second that one replica serves at most."""
        return self.slots / self.service_s

    def run_through(
        self, policy: ScalingPolicy, until_s: float, minimum: int = 1, maximum: int = 400
    ) -> list[tuple[float, int]]:
        """Lets the policy decide at its period until then, within bounds; each change of the number of replicas, with
        its time."""
        changes = []
        while self.now < until_s:
            desired = policy.decide(self.signals()).replicas
            number = min(max(desired, minimum), maximum)
            if number != self.replicas:
                changes.append((self.now, number))
                self.apply(number)
            self.run(policy.period_s)
        return changes

    def apply(self, number: int) -> None:
        """So many replicas, from now on."""
        self._ready_s += [self.now + self.start_up_s] * (number - self.replicas)
        while self._ready_s and len(self._ready_s) + self.ready > number:
            self._ready_s.pop()
        self.ready = min(self.ready, number)
        self.replicas = number

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        for _ in range(max(1, round(seconds / _STEP_S))):
            self._step()

    def _step(self) -> None:
        self.now += _STEP_S
        self.ready += sum(at <= self.now for at in self._ready_s)
        self._ready_s = [at for at in self._ready_s if at > self.now]
        came = self.rate(self.now) * _STEP_S
        done = self.running * _STEP_S / self.service_s
        self.arrived += came
        self.ended += done
        self.running -= done
        self.waiting += came
        room = self.ready * self.slots - self.running
        placed = min(self.waiting, max(0.0, room))
        self.waiting += max(0.0, -room) - placed
        self.running = min(self.running, self.ready * self.slots) + placed

    def signals(self) -> Signals:
        """Of now."""
        each, over = divmod(round(self.running), max(1, self.ready))
        replicas = tuple(self._replica(index, each + (index < over)) for index in range(self.ready))
        waiting, work = round(self.waiting), self.isl + self.decode_weight * self.osl
        wait_s = self.waiting / max(self.ready * self.replica_rate, 0.1) if waiting else 0.0
        lanes = (lane_like("all", waiting, work * waiting, wait_s),)
        arrived, ended = math.floor(self.arrived), math.floor(self.ended)
        flows = (FlowStats("all", "interactive", arrived, work * arrived, self.isl * arrived, ended, 0, 1.0),)
        counts = (ended, work * ended, ended, self.osl * ended)
        return signals_like(
            self.now, 1.8e9 + self.now, 0.0, 1, self.replicas, len(self._ready_s), None, replicas, lanes, flows, *counts
        )

    def _replica(self, index: int, requests: int) -> ReplicaStats:
        kv = (requests * (self.isl + self.osl), LIMITS.kv_tokens)
        return replica_like(f"r{index}", ReplicaStatus.READY, requests, self.slots, *kv, 0, self._tpot_s)

    @property
    def _tpot_s(self) -> float:
        """Slower where replicas are full: from 20 to 40 ms with 200 tokens in 8 s."""
        full = self.running / max(1, self.ready * self.slots)
        return (0.5 + 0.5 * full) * self.service_s / self.osl
