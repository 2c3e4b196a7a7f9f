"""The scaling of one model in Serve's controller. Every turn reads the facts. If the policy's period has passed, or
something is new, it decides, hands the number over and reports it. `worker.py` runs the turns in a thread.

The number is handed to Serve before anything is written or published, so no disk and no directory delays it.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from autoscaling.forecast.forecaster import Forecaster
from autoscaling.from_spec import choices_of
from autoscaling.log import ScalingLog, remembered
from autoscaling.policies.backlog.replicas import StartUps
from autoscaling.policies.registry import remember
from autoscaling.scaler.autoscaler import Pace
from autoscaling.scaler.decision import Limit, ScalingDecision
from autoscaling.scaler.groups import GroupDemand
from autoscaling.serve.cell import CellClient
from autoscaling.serve.facts import ModelFacts
from autoscaling.serve.handover import Handover
from autoscaling.serve.room import nodes_with_room, schedulable
from autoscaling.shadow.pair import Pair
from autoscaling.signals.signals import NextStart, PastStart, Signals, next_start, signals_of, unseen
from cluster.spec import ClusterSpec
from deployments.cell.control import Control
from deployments.cell.scaling_facts import ScalingFacts
from deployments.cell.scaling_state import ScalingState, ScalingSummary
from deployments.scheduling.replica import ReplicaStatus


class ScalingClock:
    """The clock of one model's decisions, in whole nanoseconds. It never runs backwards, not even over a restart of the
    controller on another machine: it continues from an earlier clock's moment (its own time, and the time of day), else
    from this machine's."""

    def __init__(self, ns: int | None = None, unix_ns: int | None = None) -> None:
        self._ahead_ns = 0
        if ns is not None and unix_ns is not None:
            passed = max(1, time.time_ns() - unix_ns)
            self._ahead_ns = ns + passed - time.monotonic_ns()

    def now(self) -> tuple[int, int]:
        """Its time, and the time of day."""
        return time.monotonic_ns() + self._ahead_ns, time.time_ns()


class Alarm(StrEnum):
    """What is wrong with the scaling of a model: on /metrics, in `raylane status`, and with every decision while it
    lasts."""

    POLICY_FAILED = "policy_failed"
    """The policy raised an error; the number stays."""
    STALE = "stale"
    """The owner's state cannot be read, or is too old; the number stays."""
    UNRESPONSIVE = "unresponsive"
    """A replica does not report; no replica is removed."""
    UNSCHEDULABLE = "unschedulable"
    """More replicas are wanted than there is room for."""
    FOREIGN_WRITE = "foreign_write"
    """Something else changed the number of replicas."""
    BAD_SPEC = "bad_spec"
    """The spec in force cannot be followed (a cost file is missing, a setting is invalid); the earlier one stays."""
    NO_LOG = "no_log"
    """The decision log cannot be written."""
    FORECAST_FAILED = "forecast_failed"
    """The forecast that the spec wants failed; no replica is removed until the next attempt succeeds, within ten
    minutes."""
    ROLLED_BACK = "rolled_back"
    """A promoted policy burned the SLO and was rolled back; the spec does not say so yet."""
    OUT_OF_REACH = "out_of_reach"
    """SLOs are missed faster than the SLO allows, and more replicas do not help: `raylane explain` says why."""


_BY_LIMIT = {
    Limit.POLICY_FAILED: Alarm.POLICY_FAILED,
    Limit.UNRESPONSIVE: Alarm.UNRESPONSIVE,
    Limit.UNSCHEDULABLE: Alarm.UNSCHEDULABLE,
}


def alarms_of(decision: ScalingDecision, **others: bool) -> tuple[str, ...]:
    """The alarms of a decision, and the `others` that are true."""
    reported = {_BY_LIMIT.get(decision.limit) if decision.limit is not None else None}
    reported |= {Alarm(name) for name, holds in others.items() if holds}
    if decision.concern is not None:
        reported.add(Alarm.OUT_OF_REACH)
    if decision.error is not None:
        reported.add(Alarm.POLICY_FAILED)
    return tuple(alarm.value for alarm in Alarm if alarm in reported)


log = logging.getLogger("raylane.scaling")

_LONGEST_TURN_S = 1.0
"""Operators' orders and a changed spec are followed within this time, however seldom the policy is asked."""
_REVERT_EVERY_NS = 5 * 10**9
_STANDING_S = 30.0


class ModelScaling:
    """Of one model, or of one of its groups, which then sees only what it is to carry (`scaler/groups.py`).

    After a restart of the controller or of the cell, decisions up to ten minutes old are continued from the log; of
    older ones only what a replica carries is taken over, with more doubt the older it is."""

    def __init__(
        self,
        facts: ModelFacts,
        cell: CellClient,
        handover: Handover,
        folder: Path,
        forecaster: Forecaster | None = None,
    ) -> None:
        self._facts = facts
        self._cell = cell
        self._handover = handover
        self._forecaster = forecaster
        self._clock = ScalingClock()
        model, region = facts.model.group_key, facts.region.name
        known = remembered(folder, model, self._clock.now()[1] / 1e9)
        self._restored = known is not None and not known.idle_s
        if known is None or known.idle_s:
            self._pair = Pair(facts.setup)
        else:
            self._pair = known.pair
            self._clock = ScalingClock(round(known.at_s * 1e9), round(known.unix_s * 1e9))
        if known is not None and known.idle_s:
            remember(self._pair.scaler.policy, known.pair.scaler.policy, known.idle_s)
        self._demand = GroupDemand(facts.model.group, int(time.time()))
        self._overflow = facts.setup.overflow()
        self._log = ScalingLog(folder, model, region)
        self._starts = StartUps(facts.setup.replica_profile.start_up_s)
        self._foreign = self._pair.scaler.foreign_writes
        self._revert_ns = 0
        self._pace = Pace()
        self._reported_standing: Mapping[str, Any] = {}
        self._standing_s = -math.inf

    @property
    def turn_s(self) -> float:
        """Seconds from turn to turn: a whole fraction of the spec's period."""
        return self._facts.setup.period_s / math.ceil(self._facts.setup.period_s / _LONGEST_TURN_S)

    def turn(self) -> None:
        """Decides once if the spec's period has passed, or something new cannot wait; not before Serve has reported its
        number."""
        applied = self._handover.applied
        if applied is None:
            return
        self._cell.look()
        ns, unix_ns = self._clock.now()
        news, controls = self._follow(ns), self._controls(unix_ns)
        if news or self._pace.due(ns / 1e9, self.turn_s / 2, applied, controls):
            self._decide(ns, unix_ns, applied, controls)
        if self._pair.reverted is not None and ns >= self._revert_ns:
            self._revert_ns = ns + _REVERT_EVERY_NS
            self._revert()

    def _decide(self, ns: int, unix_ns: int, applied: int, controls: tuple[Control, ...]) -> None:
        signals = self._signals(ns, unix_ns, applied)
        self._write(lambda: self._log.before(self._pair, signals.at_s, signals.unix_s))
        decision = self._pair.decide(signals, controls)
        self._handover.ask(decision.requested)
        seen = signals.age_s <= self._pair.scaler.bounds.stale_s
        self._pace.decided(ns / 1e9, self._facts.setup.period_s if seen else 0.0, decision.requested, controls)
        self._write(lambda: self._log.after(signals, controls, decision))
        overflow = self._overflow.decided(signals, decision) if self._is_group else 0.0
        self._cell.publish(replace(self._state(signals, decision), overflow=overflow))

    @property
    def _is_group(self) -> bool:
        return len(self._facts.groups) > 1

    def close(self) -> None:
        self._log.close()
        self._cell.close()

    def _follow(self, ns: int) -> bool:
        """Whether something has changed.

        A restored state follows the spec in force, not the deployed one, so it waits for the directory's first report.
        """
        listing, bad = self._cell.listing, self._facts.bad
        if listing is not None and (self._facts.follow(listing.spec_json) or self._restored):
            self._restored = False
            self._pair.configure(self._facts.setup, ns / 1e9)
            self._overflow = self._facts.setup.overflow()
            self._log.configured()
            log.info("model %s now scales by %s", self._facts.model.group_key, self._pair.choice.name)
            return True
        return self._facts.bad is not bad

    def _signals(self, ns: int, unix_ns: int, applied: int) -> Signals:
        scaling_facts, facts, listing = self._cell.scaling_facts, self._facts, self._cell.listing
        if scaling_facts is None:
            return unseen(ns / 1e9, unix_ns / 1e9, applied)
        if self._is_group:
            scaling_facts = self._own_part(scaling_facts)
        replicas = () if listing is None else listing.replicas
        room = schedulable(facts.spec, facts.model, facts.region, self._cell.nodes, replicas)
        if room is not None:  # what runs can run, whatever the sums say
            room = max(room, sum(one.status != ReplicaStatus.DRAINING for one in scaling_facts.snapshot.replicas))
        at_s, unix_s, forecaster = ns / 1e9, unix_ns / 1e9, self._forecaster
        forecast = None if forecaster is None else forecaster.forecast(unix_s)
        failed = forecaster is not None and forecaster.failed
        begun = 0 if listing is None else sum(one.model == facts.model.group_key for one in listing.starts.running)
        signals = signals_of(
            scaling_facts.snapshot,
            at_s,
            unix_s,
            applied,
            scaling_facts.attainment,
            epoch=scaling_facts.epoch,
            age_s=scaling_facts.age_s + round(self._cell.age_s, 2),
            schedulable=room,
            forecast=forecast,
            forecast_failed=failed,
            next_start=self._next_start(),
            begun=begun,
            peers_spare=scaling_facts.peers_spare,
        )
        if forecaster is not None and signals.age_s <= facts.setup.bounds.stale_s:
            forecaster.look(signals)
        return signals

    def _own_part(self, scaling_facts: ScalingFacts) -> ScalingFacts:
        """What the group is to carry of it, as the other groups have reported."""
        summary = ScalingSummary() if self._cell.listing is None else self._cell.listing.scaling
        states = {view.group: summary.of(view.group_key) for view in self._facts.groups}
        overflow = {group: state.overflow for group, state in states.items() if state is not None}
        snapshot, epoch = self._demand.of(scaling_facts.snapshot, scaling_facts.epoch, overflow)
        return replace(scaling_facts, snapshot=snapshot, epoch=epoch)

    def _next_start(self) -> NextStart | None:
        """What the start of the next replica should take, by those before it and by where there is room."""
        listing, facts = self._cell.listing, self._facts
        if listing is None:
            return None
        starts, name = listing.starts, facts.model.group_key
        room = nodes_with_room(
            facts.spec, facts.model, facts.region, self._cell.nodes, listing.replicas, starts.running
        )
        past = [PastStart(start.node_id, start.seconds) for start in starts.done if start.model == name]
        return next_start(past, facts.setup.start_seconds, room)

    def _controls(self, unix_ns: int) -> tuple[Control, ...]:
        listing = self._cell.listing
        return () if listing is None else listing.orders.of(self._facts.model.group_key, unix_ns / 1e9)

    def _state(self, signals: Signals, decision: ScalingDecision) -> ScalingState:
        stale = signals.age_s > self._pair.scaler.bounds.stale_s
        if not stale:
            self._starts.look(signals)
        foreign, self._foreign = self._foreign, self._pair.scaler.foreign_writes
        alarms = alarms_of(
            decision,
            stale=stale,
            foreign_write=self._foreign > foreign,
            bad_spec=self._facts.bad,
            no_log=self._log.failing,
            forecast_failed=signals.forecast_failed,
            rolled_back=self._pair.reverted is not None,
        )
        due_s = self._starts.due_in_s(signals.at_s)
        eta_s = due_s[0] if due_s else self._starts.expected_s if decision.requested > signals.applied else None
        return ScalingState(
            self._facts.model.group_key,
            decision.requested,
            signals.applied,
            signals.ready,
            signals.starting,
            decision.reason,
            signals.unix_s,
            eta_s,
            alarms,
            self._standing(signals.at_s),
            decision.scheduled,
        )

    def _standing(self, now: float) -> Mapping[str, Any]:
        """The shadow's report, at most every half a minute, because every change is sent to the whole cell."""
        shadow = self._pair.shadow
        if shadow is None:
            self._reported_standing, self._standing_s = {}, -math.inf
        elif now >= self._standing_s:
            standing = shadow.standing()
            self._reported_standing, self._standing_s = {} if standing is None else asdict(standing), now + _STANDING_S
        return self._reported_standing

    def _write(self, write: Callable[[], None]) -> None:
        """Writes something down. A failed write must not stop a decision."""
        try:
            write()
        except Exception as error:
            self._log.lost(error)

    def _revert(self) -> None:
        """Makes the spec say what is already done: the promoted policy is the shadow again."""
        assert self._pair.reverted is not None
        reverted, name = self._pair.reverted, self._facts.model.group_key
        try:
            spec = ClusterSpec.model_validate_json(self._cell.spec())
            if choices_of(spec, spec.view(name))[0] == reverted.policy:  # else somebody has changed it already
                self._cell.roll_back(f"SLOs were missed {reverted.burn:.1f} times as fast as the SLO allows")
                log.warning("model %s: the promotion of policy %s is rolled back", name, reverted.policy.name)
        except (OSError, ValueError) as error:
            log.warning("a promotion was rolled back, but the spec does not say so yet: %s", error)
