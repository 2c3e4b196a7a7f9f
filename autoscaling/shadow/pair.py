"""What scales one model: an active policy, an optional shadow, and a promotion on probation. Serve and `replay` drive
it; the log records it.

Pure and deterministic: a log begins with its state, and it can be pickled between any two calls. A spec that swaps the
active policy and the shadow is a promotion: the policies change places and keep what they have learned. Swapping them
back is a rollback. A promoted policy that burns the SLO is rolled back at once, here; `reverted` says so until the spec
does.
"""

import math
from collections import deque
from dataclasses import dataclass, replace

from autoscaling.from_spec import ScalingSetup
from autoscaling.policies.policy import ReplicaProfile, ScalingPolicy
from autoscaling.policies.registry import PolicyChoice, remember
from autoscaling.scaler.autoscaler import Autoscaler, PacedScaler
from autoscaling.scaler.decision import Bounds, ScalingDecision
from autoscaling.shadow.contest import ShadowComparison, ShadowStanding
from autoscaling.signals.signals import Signals
from deployments.cell.control import Control


class Shadow:
    """`policy` beside the policy named `active`: it gets the same inputs at the same moments, and changes nothing.

    It sees the number of replicas that the active policy produced, so its answers are about the real state. Its own
    numbers go through the fluid model (`contest.py`). Rate limits do not apply to it: its numbers are never applied, so
    it would ask for them again at every moment.
    """

    def __init__(self, policy: ScalingPolicy, bounds: Bounds, replica_profile: ReplicaProfile, active: str) -> None:
        self.scaler = PacedScaler(Autoscaler(policy, _unhurried(bounds), replica_profile.start_up_s))
        self._contest = ShadowComparison(active, policy.name, replica_profile)

    @property
    def policy(self) -> ScalingPolicy:
        return self.scaler.autoscaler.policy

    def bound(self, bounds: Bounds) -> None:
        self.scaler.autoscaler.bounds = _unhurried(bounds)

    def look(self, signals: Signals, controls: tuple[Control, ...], active: ScalingDecision) -> None:
        """The active policy has decided by these facts. Nothing is compared while the facts are unknown."""
        if signals.age_s > self.scaler.autoscaler.bounds.stale_s:
            return
        decision = self.scaler.decide(signals, controls)
        self._contest.look(signals)
        self._contest.decided(signals.at_s, (active.requested, active.reason), (decision.requested, decision.reason))

    def standing(self) -> ShadowStanding | None:
        return self._contest.standing()


def _unhurried(bounds: Bounds) -> Bounds:
    return replace(bounds, up_per_min=math.inf, down_per_min=math.inf)


MIN_MISSED = 5
"""Fewer missed SLOs prove nothing."""

Counts = dict[str, tuple[int, int, float]]


class Probation:
    """The probation of a policy that was promoted at `since_s`: for `within_s` seconds it is rolled back at `burn`.

        burn of a class = missed / (met + missed) / (1 - attainment), over span_s seconds; the worst class counts

    The first span after the promotion depends on the old policy too, so nothing is judged in it.
    """

    def __init__(self, since_s: float, within_s: float, span_s: float, burn: float) -> None:
        self.until_s = since_s + within_s
        self._since_s = since_s
        self._span_s = span_s
        self._maximum = burn
        self._epoch: int | None = None
        self._seen: deque[tuple[float, Counts]] = deque()
        self.burn = 0.0

    def look(self, signals: Signals) -> bool:
        """Whether the policy has failed by this moment."""
        if signals.epoch != self._epoch:
            self._seen.clear()  # the counts began anew
            self._epoch = signals.epoch
        counts = {name: (*judged, signals.allowed(name)) for name, judged in signals.judged.items()}
        self._seen.append((signals.at_s, counts))
        while len(self._seen) > 1 and self._seen[1][0] <= signals.at_s - self._span_s:
            self._seen.popleft()
        before, now = self._seen[0][1], self._seen[-1][1]
        self.burn = max((_burn(before.get(name, (0, 0, 0.0)), now[name]) for name in now), default=0.0)
        return self._since_s + self._span_s <= signals.at_s <= self.until_s and self.burn >= self._maximum


def _burn(before: tuple[int, int, float], now: tuple[int, int, float]) -> float:
    met, missed = now[0] - before[0], now[1] - before[1]
    if missed < MIN_MISSED or met < 0:
        return 0.0
    return missed / (met + missed) / max(now[2], 1e-6)


Rule = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Reverted:
    """The promotion of `policy` was rolled back because SLOs were missed `burn` times as fast as the SLO allows."""

    policy: PolicyChoice
    burn: float


class Pair:
    """`choice`: the active policy's; `shadow_choice`: the other's."""

    def __init__(self, setup: ScalingSetup) -> None:
        self.choice, self.shadow_choice = setup.policy, setup.shadow
        self.reverted: Reverted | None = None
        self.probation: Probation | None = None
        self._promoted_over: PolicyChoice | None = None
        self._replica_profile = setup.replica_profile
        self._paced = PacedScaler(setup.autoscaler())
        self.shadow = None if setup.shadow is None else self._new_shadow(setup.shadow.make(setup.replica_profile))

    @property
    def scaler(self) -> Autoscaler:
        return self._paced.autoscaler

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> ScalingDecision:
        if self.probation is not None:
            self._watch(signals)
        decision = self._paced.decide(signals, controls)
        if self.shadow is not None:
            self.shadow.look(signals, controls, decision)
        return decision

    def configure(self, setup: ScalingSetup, now: float) -> None:
        """Follows a changed spec from now on. A policy of the same kind keeps what it has learned of replicas like
        these. Raises ValueError; then nothing is changed."""
        pair = (self.choice, self.shadow_choice)
        if (setup.policy, setup.shadow) == pair and setup.replica_profile == self._replica_profile:
            self.reverted = None
        elif self.reverted is not None and (setup.shadow, setup.policy) == pair:
            pass  # that spec is from before the promotion was taken back
        elif self.shadow is not None and (setup.shadow, setup.policy) == pair:
            self._swap()
            self._promote_or_return(pair[0], now, _rule(setup))
        else:
            self._replace(setup)
        self.scaler.bounds = setup.bounds
        if self.shadow is not None:
            self.shadow.bound(setup.bounds)
        self._paced.hurry()

    def _watch(self, signals: Signals) -> None:
        assert self.probation is not None
        if signals.age_s > self.scaler.bounds.stale_s:
            return
        if self.probation.look(signals):
            self.reverted = Reverted(self.choice, self.probation.burn)
            self._swap()
            self._paced.hurry()
        if self.reverted is not None or signals.at_s > self.probation.until_s:
            self.probation = self._promoted_over = None

    def _swap(self) -> None:
        assert self.shadow is not None
        assert self.shadow_choice is not None
        old, new = self.scaler.policy, self.shadow.policy
        self.scaler.policy = new
        self.choice, self.shadow_choice = self.shadow_choice, self.choice
        self.shadow = self._new_shadow(old)

    def _promote_or_return(self, old: PolicyChoice, now: float, rule: Rule) -> None:
        """A policy that returns after the rollback of another one is not on probation."""
        returns = self._promoted_over == self.choice
        self.reverted = None
        self._promoted_over = None if returns else old
        self.probation = None if returns else Probation(now, *rule)

    def _replace(self, setup: ScalingSetup) -> None:
        keeps = setup.replica_profile == self._replica_profile
        policy = self.scaler.policy
        if setup.policy != self.choice or not keeps:
            policy = remember(setup.policy.make(setup.replica_profile), policy if keeps else None)
        shadow = None if setup.shadow is None else setup.shadow.make(setup.replica_profile)
        if shadow is not None and self.shadow is not None and keeps:
            shadow = self.shadow.policy if setup.shadow == self.shadow_choice else remember(shadow, self.shadow.policy)
        same = keeps and setup.shadow == self.shadow_choice and setup.policy == self.choice
        self.scaler.policy = policy
        self.choice, self.shadow_choice, self._replica_profile = setup.policy, setup.shadow, setup.replica_profile
        self.reverted = self.probation = self._promoted_over = None
        if not same:
            self.shadow = None if shadow is None else self._new_shadow(shadow)

    def _new_shadow(self, policy: ScalingPolicy) -> Shadow:
        return Shadow(policy, self.scaler.bounds, self._replica_profile, self.scaler.policy.name)


def _rule(setup: ScalingSetup) -> Rule:
    return (setup.rollback.within_s, setup.rollback.span_s, setup.rollback.burn)
