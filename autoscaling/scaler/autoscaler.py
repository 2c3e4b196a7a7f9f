"""The autoscaler of one model: asks a policy, and puts the limits on top. The same object decides in Ray Serve, the
simulator, a shadow and `tune`.

    wanted    = policy(signals)                                             raised: the number stays (LAW_FAILED)
    bounded   = within [least, min(most, ceiling)], held or pinned by an operator, no more than can be scheduled
    requested = bounded, at most so many up and down in any 60 s; no step down while a replica is unresponsive, or a
    forecast failed

What is broken is a named condition with a safe answer: the number that is applied stays. The platform may apply
something else than was requested (another hand wrote the target, a deploy reset it): the next decision starts from what
is applied, never from memory.
"""

import math
import operator
from collections import deque
from dataclasses import replace

from autoscaling.policies.policy import Concern, DesiredReplicas, PolicyReason, ScalingPolicy
from autoscaling.scaler.decision import Bounds, Limit, ScalingDecision
from autoscaling.signals.signals import Signals
from deployments.cell.control import Control, ControlKind, in_force
from deployments.scheduling.replica import ReplicaStatus


class Room:
    """How many replicas there is room for. What the platform says is believed; what it has not started for long is
    taken for impossible, for a while."""

    def __init__(self) -> None:
        self._waiting_since_s = math.inf
        self._there = 0
        self._maximum: int | None = None
        self._until_s = 0.0

    def look(self, signals: Signals, bounds: Bounds) -> None:
        """Takes a moment into account. Replicas start within `unschedulable_s`; a later one is not coming."""
        there = sum(replica.status != ReplicaStatus.DRAINING for replica in signals.replicas)
        if self._maximum is not None and (there > self._maximum or signals.at_s >= self._until_s):
            self._maximum = None
        if signals.applied <= there or there != self._there:
            self._waiting_since_s = math.inf
        if signals.applied > there:
            self._waiting_since_s = min(self._waiting_since_s, signals.at_s)
        self._there = there
        if signals.at_s - self._waiting_since_s >= bounds.unschedulable_s:
            self._maximum, self._until_s, self._waiting_since_s = there, signals.at_s + bounds.retry_s, math.inf

    def maximum(self, signals: Signals) -> int | None:
        """The most that there is room for, as far as anybody knows."""
        known = [maximum for maximum in (self._maximum, signals.schedulable) if maximum is not None]
        return min(known) if known else None


_RATE_SPAN_S = 60.0


class Autoscaler:
    """`bounds` may be replaced at any time."""

    def __init__(self, policy: ScalingPolicy, bounds: Bounds) -> None:
        self.policy = policy
        self.bounds = bounds
        self.failures = 0
        self.foreign_writes = 0
        """How often somebody else changed the number."""
        self._requested: int | None = None
        self._steps: deque[tuple[float, int]] = deque()
        self._unresponsive_since_s: float | None = None
        self._room = Room()

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> ScalingDecision:
        """Decides by the facts of this moment. `signals.at_s` never runs backwards. Where nobody could read the books,
        the number stays, unless an operator says otherwise."""
        self._look(signals)
        controls = in_force(controls, signals.unix_s)
        if signals.age_s > self.bounds.stale_s:
            return self._answer(signals, None, self._commanded(signals.applied, controls), Limit.STALE)
        try:
            desired = self._asked(signals)
        except Exception as error:  # whatever a policy does wrong, the number of replicas must not follow it
            self.failures += 1
            return self._answer(
                signals,
                None,
                self._commanded(signals.applied, controls),
                Limit.POLICY_FAILED,
                f"{type(error).__name__}: {error}",
            )
        return self._limited(signals, desired, controls)

    def _asked(self, signals: Signals) -> DesiredReplicas:
        """What the policy wants, beside the cordoned replicas: they are applied and do nothing, so it knows nothing of
        them."""
        cordoned = signals.count(ReplicaStatus.CORDONED)
        desired = self.policy.decide(
            replace(signals, applied=max(0, signals.applied - cordoned)) if cordoned else signals
        )
        checked = _checked(self.policy.name, desired)
        return replace(checked, replicas=checked.replicas + cordoned) if cordoned else checked

    def _look(self, signals: Signals) -> None:
        if self._requested is not None and signals.applied != self._requested:
            self.foreign_writes += 1
        if signals.age_s > self.bounds.stale_s:
            return  # what nobody sees has not gone
        if not signals.count(ReplicaStatus.UNRESPONSIVE):
            self._unresponsive_since_s = None
        elif self._unresponsive_since_s is None:
            self._unresponsive_since_s = signals.at_s
        self._room.look(signals, self.bounds)

    def _limited(self, signals: Signals, desired: DesiredReplicas, controls: tuple[Control, ...]) -> ScalingDecision:
        number, limit = self._bounded(desired.replicas)
        commanded, command = self._commanded(number, controls)
        if command is not None:
            number, limit = commanded, command
        maximum = self._room.maximum(signals)
        if maximum is not None and number > max(maximum, signals.applied if limit is Limit.PINNED else 0):
            number, limit = max(maximum, min(self.bounds.minimum, number)), Limit.UNSCHEDULABLE
        number, limit = self._rated(signals, number, limit)
        return self._answer(signals, desired, (number, limit), None)

    def _bounded(self, number: int) -> tuple[int, Limit | None]:
        bounds = self.bounds
        if number < bounds.minimum:
            return bounds.minimum, Limit.MIN_REPLICAS
        if (
            bounds.ceiling is not None
            and number > max(bounds.minimum, bounds.ceiling)
            and bounds.ceiling <= bounds.maximum
        ):
            return max(bounds.minimum, bounds.ceiling), Limit.COST_CEILING
        if number > bounds.maximum:
            return bounds.maximum, Limit.MAX_REPLICAS
        return number, None

    @staticmethod
    def _commanded(number: int, controls: tuple[Control, ...]) -> tuple[int, Limit | None]:
        """The last pin decides; else the largest hold."""
        pins = [control for control in controls if control.kind is ControlKind.PIN]
        if pins:
            return pins[-1].replicas, Limit.PINNED
        held = max((control.replicas for control in controls), default=0)
        return (held, Limit.HELD) if number < held else (number, None)

    def _rated(self, signals: Signals, number: int, limit: Limit | None) -> tuple[int, Limit | None]:
        """An operator's pin is not slowed down; and nothing is taken away while nobody knows what a replica does, or
        what was foretold."""
        if limit in (Limit.PINNED, Limit.HELD):
            return number, limit
        applied, now = signals.applied, signals.at_s
        if (
            number < applied
            and self._unresponsive_since_s is not None
            and now - self._unresponsive_since_s < self.bounds.unresponsive_s
        ):
            return applied, Limit.UNRESPONSIVE
        if number < applied and signals.forecast_failed:
            return applied, Limit.FORECAST_FAILED
        while self._steps and self._steps[0][0] <= now - _RATE_SPAN_S:
            self._steps.popleft()
        if number > applied:
            up = sum(step for _, step in self._steps if step > 0)
            maximum = applied + max(int(min(self.bounds.up_per_min, 1e9)) - up, 0 if up else 1)
            return (number, limit) if number <= maximum else (maximum, Limit.UP_RATE)
        if number < applied:
            down = -sum(step for _, step in self._steps if step < 0)
            fewest = applied - max(int(min(self.bounds.down_per_min, 1e9)) - down, 0 if down else 1)
            return (number, limit) if number >= fewest else (fewest, Limit.DOWN_RATE)
        return number, limit

    def _answer(
        self,
        signals: Signals,
        desired: DesiredReplicas | None,
        number: tuple[int, Limit | None],
        why: Limit | None,
        error: str | None = None,
    ) -> ScalingDecision:
        requested, limit = number
        if requested != signals.applied:
            self._steps.append((signals.at_s, requested - signals.applied))
        self._requested = requested
        policy_reason: PolicyReason | None = None if desired is None else desired.policy_reason
        return ScalingDecision(
            signals.at_s,
            signals.applied,
            signals.ready,
            requested,
            None if desired is None else desired.replicas,
            policy_reason,
            limit or why,
            {} if desired is None else dict(desired.terms),
            error,
            None if desired is None else desired.concern,
        )


def _checked(policy: str, desired: DesiredReplicas) -> DesiredReplicas:
    """What a policy answered, in the types that are logged and compared. Raises TypeError and ValueError for what is no
    number of replicas, no reason or no figure."""
    replicas = operator.index(desired.replicas)
    if replicas < 0:
        raise ValueError(f"policy {policy} wants {replicas} replicas; allowed: 0 or more")
    terms = {str(name): float(value) for name, value in desired.terms.items()}
    for name, value in terms.items():
        if math.isnan(value):
            raise ValueError(f"policy {policy}: term {name} = nan; allowed: a number")
    return DesiredReplicas(
        replicas,
        PolicyReason(desired.policy_reason),
        terms,
        None if desired.concern is None else Concern(desired.concern),
    )


_EARLY = 0.25
"""A policy is asked at the reading nearest to its time: this share of the readings' distance early."""


class Pace:
    """When to decide again: when the period has passed, or at once after an operator's word or another hand's change of
    the number. One rule for the controller's turns and for the policies that are asked in them."""

    def __init__(self) -> None:
        self._due_s = -math.inf
        self._requested: int | None = None
        self._controls: tuple[Control, ...] = ()

    def due(self, at_s: float, early_s: float, applied: int, controls: tuple[Control, ...]) -> bool:
        """Whether to decide at `at_s`, the reading nearest to the end of the period: at most `early_s` before it."""
        return applied != self._requested or controls != self._controls or at_s + early_s >= self._due_s

    def decided(self, at_s: float, period_s: float, requested: int, controls: tuple[Control, ...]) -> None:
        """`requested` stands for `period_s` from now on."""
        self._due_s, self._requested, self._controls = at_s + period_s, requested, controls

    def hurry(self) -> None:
        """Decides at the next moment, whatever the time."""
        self._due_s = -math.inf


class PacedScaler:
    """Called at every reading, asks `autoscaler` as often as its policy wants.

    Between two asks the last number stands. An operator's word is followed at once, and so is another hand's change of
    the number: the policy is asked before its time. Books that are too old are reported at once; the policy is not
    asked then.
    """

    def __init__(self, autoscaler: Autoscaler) -> None:
        self.autoscaler = autoscaler
        self._pace = Pace()
        self._read_s = -math.inf
        self._last: ScalingDecision | None = None

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> ScalingDecision:
        """Decides by the facts of this moment, or repeats what was decided last."""
        now, last, period_s = signals.at_s, self._last, self.autoscaler.policy.period_s
        controls = in_force(controls, signals.unix_s)
        early_s = _EARLY * min(now - self._read_s, period_s)
        self._read_s = now
        if signals.age_s > self.autoscaler.bounds.stale_s:
            return self.autoscaler.decide(signals, controls)
        if last is not None and not self._pace.due(now, early_s, signals.applied, controls):
            return replace(last, at_s=now, applied=signals.applied, ready=signals.ready)
        self._last = self.autoscaler.decide(signals, controls)
        self._pace.decided(now, period_s, self._last.requested, controls)
        return self._last

    def hurry(self) -> None:
        """Asks at the next moment, whatever the time: the policy or its bounds have changed."""
        self._pace.hurry()
