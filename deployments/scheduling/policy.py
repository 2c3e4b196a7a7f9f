"""The scheduler's settings: lanes, shares, weights, the limits of tenants with what each uses of them. All of it can
change while requests wait (`Scheduler.configure`).

The settings follow from the spec, for the gateway and the simulator alike, and so do their defaults.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from cluster.spec import ClusterSpec, LanePolicy, Model, Region, RequestLimits, Scheduling
from deployments.scheduling.itl_cap import ItlTarget
from deployments.scheduling.ladder import LadderStep
from deployments.scheduling.reasons import RejectCause, Rung
from deployments.scheduling.replica import Binding
from deployments.scheduling.request import Job

_SCHEDULING = Scheduling()


class Order(StrEnum):
    """The order inside a tenant's queue."""

    SHORTEST = "shortest"
    ARRIVAL = "arrival"


_ORDER = Order(_SCHEDULING.order)


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """`weight` is the share of a lane; None: no limit."""

    weight: float = 1.0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrency: int | None = None

    @property
    def is_limited(self) -> bool:
        return (self.requests_per_minute, self.tokens_per_minute, self.max_concurrency) != (None, None, None)


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """`lanes` ascend by their bound and end with an unbounded one.

    `promoted_share` (phi) is the share of the promoted. `decode_weight` is what an output token costs, in prefill
    tokens. `stickiness_ms`: a cached prefix is left alone when using it would cost that much more expected TTFT than
    the best replica. `pick` names how replicas are chosen (`pick.py`). A tenant without a policy has weight 1 and
    no limits. Of a model with several groups: `groups` serve a lane (by its name), in the order in which they are
    tried, and `contexts` is the longest sequence that each takes, in tokens. `itl`: what classes aim at, by name.
    `ladder`: its steps in their order, with the share of each class that is `allowed` to miss its SLO.
    """

    lanes: tuple[LanePolicy, ...] = (LanePolicy("all"),)
    order: Order = _ORDER
    promoted_share: float = _SCHEDULING.promoted_share
    decode_weight: float = _SCHEDULING.decode_weight
    max_waiting: int = RequestLimits().max_waiting
    stickiness_ms: float = _SCHEDULING.stickiness_ms
    tenants: Mapping[str, TenantPolicy] = field(default_factory=dict)
    pick: str = _SCHEDULING.pick
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    contexts: Mapping[str, int] = field(default_factory=dict)
    itl: Mapping[str, ItlTarget] = field(default_factory=dict)
    ladder: tuple[LadderStep, ...] = ()
    allowed: Mapping[str, float] = field(default_factory=dict)

    def lane_of(self, tokens: int) -> int:
        """The index of the lane for a request of that many tokens."""
        for index, lane in enumerate(self.lanes):
            if lane.up_to_tokens is None or tokens <= lane.up_to_tokens:
                return index
        return len(self.lanes) - 1

    def served(self, home: int, context_tokens: int) -> tuple[int, tuple[str, ...]]:
        """The lane and the groups of a request that belongs to the lane `home` by its length: that lane, or else the
        next longer one (then the next shorter one) with a group whose context it fits. No groups: it fits none."""
        for index in (*range(home, len(self.lanes)), *reversed(range(home))):
            groups = self.groups.get(self.lanes[index].name, ())
            fitting = tuple(name for name in groups if self.contexts[name] >= context_tokens)
            if fitting:
                return index, fitting
        return home, ()


def policy_of(spec: ClusterSpec, model: Model | None = None, region: Region | None = None) -> SchedulingPolicy:
    """The scheduler's policy for `model` in the cell of `region`; without a model, for any that has only one group
    there."""
    settings = spec.scheduling
    views = () if model is None else spec.groups_of(model, region)
    groups = spec.lane_groups(model, region) if model is not None and len(views) > 1 else {}
    return SchedulingPolicy(
        lanes=spec.lanes,
        order=Order(settings.order),
        promoted_share=settings.promoted_share,
        decode_weight=settings.decode_weight,
        max_waiting=spec.gateway.limits.max_waiting,
        stickiness_ms=settings.stickiness_ms,
        tenants={
            tenant.name: TenantPolicy(
                tenant.weight, tenant.requests_per_minute, tenant.tokens_per_minute, tenant.max_concurrency
            )
            for tenant in spec.tenants
        },
        pick=settings.pick,
        groups=groups,
        contexts={view.group: view.settings.max_model_len for view in views} if groups else {},
        ladder=() if model is None else ladder_of(spec, model),
        allowed={one.name: 1.0 - one.attainment for one in spec.classes} if spec.ladder else {},
        itl={one.name: ItlTarget(one.itl_ms / 1e3, one.attainment) for one in spec.classes if one.itl_ms is not None},
    )


def ladder_of(spec: ClusterSpec, model: Model) -> tuple[LadderStep, ...]:
    """The steps of the model's ladder: each rung for each of its classes. What cannot touch the model is left out."""
    steps = (LadderStep(Rung(rung.rung), name, rung.max_tokens or 0) for rung in spec.ladder for name in rung.classes)
    return tuple(
        step
        for step in steps
        if step.rung is Rung.SHED
        or (step.rung is Rung.CLAMP and model.task == "generate")
        or (step.rung is Rung.FALLBACK and model.fallback_of(step.traffic_class) is not None)
    )


def binding_of(spec: ClusterSpec) -> Binding:
    """How late requests are bound in a cell of that spec."""
    return Binding(spec.scheduling.bind_ahead, spec.scheduling.prefill_steps)


AT_ONCE_RETRY_S = 1.0
"""When the next of a tenant's requests ends nobody knows: it may ask again after so long."""


MAX_DEBT_MIN = 60.0
"""Whoever says what other cells have taken may be wrong: no tenant is kept out for longer because of that."""


class Bucket:
    """A token bucket: holds at most a minute's worth."""

    __slots__ = ("_at_s", "_level", "_per_minute")

    def __init__(self, per_minute: float, now: float) -> None:
        self._per_minute = per_minute
        self._level = per_minute
        self._at_s = now

    def wait_s(self, cost: float, now: float) -> float:
        """How long until `cost` may be taken; 0: now."""
        self._flow(now)
        missing = min(cost, self._per_minute) - self._level
        return max(0.0, missing) * 60.0 / self._per_minute

    def take(self, cost: float) -> None:
        """Takes; a negative cost gives back."""
        self._level = min(self._per_minute, self._level - cost)

    def take_late(self, cost: float, now: float) -> None:
        """Takes without having asked before: the bucket may be in debt then, by `MAX_DEBT_MIN` minutes' worth."""
        self._flow(now)
        lowest = min(self._level, -MAX_DEBT_MIN * self._per_minute)
        self.take(min(cost, self._level - lowest))

    def resize(self, per_minute: float, now: float) -> None:
        """The limit changed: what was used stays used."""
        self._flow(now)
        self._level += per_minute - self._per_minute
        self._per_minute = per_minute

    def _flow(self, now: float) -> None:
        self._level = min(self._per_minute, self._level + (now - self._at_s) * self._per_minute / 60.0)
        self._at_s = now


class TenantUse(NamedTuple):
    """What a tenant uses of its limits in one cell: requests and tokens that were taken, and requests at once."""

    tenant: str
    requests: float
    tokens: float
    at_once: int


@dataclass(eq=False, slots=True)
class _Use:
    """What one tenant uses, and how many of its requests other cells have at once. `took_*` count from the start."""

    at_once: int = 0
    at_once_elsewhere: int = 0
    took_requests: int = 0
    took_tokens: int = 0
    requests: Bucket | None = None
    tokens: Bucket | None = None

    def take(self, requests: int, tokens: int) -> None:
        """A negative number gives back."""
        self.took_requests += requests
        self.took_tokens += tokens
        if self.requests is not None:
            self.requests.take(requests)
        if self.tokens is not None:
            self.tokens.take(tokens)

    def take_late(self, requests: float, tokens: float, now: float) -> None:
        """Takes without counting it as taken here."""
        if self.requests is not None:
            self.requests.take_late(requests, now)
        if self.tokens is not None:
            self.tokens.take_late(tokens, now)


class TenantLimits:
    """What the tenants use of one model: requests and tokens a minute, and requests at once. Tenants without a policy
    have no limits and are not remembered.

    A limit of its own is answered 429, with the time to wait. A minute's worth may go at once and flows back evenly. A
    request that is larger than the whole bucket passes when the bucket is full, and leaves it in debt. Tokens are taken
    as they are booked and settled by the engine's count. A guest of a peer cell counts there alone.

    What other cells take counts, too, as far as it is known (`deployments/peering/tenant_use.py` bounds the rest).
    """

    def __init__(self) -> None:
        self._policies: Mapping[str, TenantPolicy] = {}
        self._uses: dict[str, _Use] = {}

    def configure(self, policies: Mapping[str, TenantPolicy], now: float) -> None:
        """Changes the limits. What runs and what was used is remembered."""
        self._policies = policies
        self._uses = {name: use for name, use in self._uses.items() if name in policies or use.at_once}
        for name, policy in policies.items():
            use = self._uses.setdefault(name, _Use())
            use.requests = _resized(use.requests, policy.requests_per_minute, now)
            use.tokens = _resized(use.tokens, policy.tokens_per_minute, now)

    def reject(self, job: Job, now: float) -> tuple[RejectCause, float] | None:
        """The limit that the job would break, and after how many seconds it would not."""
        policy, use = self._policies.get(job.request.tenant), self._uses.get(job.request.tenant)
        if policy is None or use is None or job.request.guest_of:
            return None
        if policy.max_concurrency is not None and use.at_once + use.at_once_elsewhere >= policy.max_concurrency:
            return RejectCause.TENANT_CONCURRENCY, AT_ONCE_RETRY_S
        if use.requests is not None and (wait_s := use.requests.wait_s(1, now)) > 0:
            return RejectCause.TENANT_REQUESTS, wait_s
        if use.tokens is not None and (wait_s := use.tokens.wait_s(booked_tokens(job), now)) > 0:
            return RejectCause.TENANT_TOKENS, wait_s
        return None

    def begin(self, job: Job) -> None:
        """The job was admitted."""
        use = self._uses.get(job.request.tenant)
        if use is None or job.request.guest_of:
            return
        job.limited = True
        use.at_once += 1
        use.take(1, booked_tokens(job))

    def adopt(self, job: Job) -> None:
        """The job was admitted before: it counts among those at once. What it took of the minute is taken; by another
        owner, that is not known any more."""
        use = self._uses.get(job.request.tenant)
        if use is not None and not job.request.guest_of:
            job.limited = True
            use.at_once += 1

    def end(self, job: Job) -> None:
        """The job left its lane unplaced, or its lease ended for good."""
        if job.limited:
            job.limited = False
            self._uses[job.request.tenant].at_once -= 1

    def used(self) -> tuple[TenantUse, ...]:
        """What was taken here since the start, and the requests at once, by tenants that have a limit."""
        return tuple(
            TenantUse(name, use.took_requests, use.took_tokens, use.at_once)
            for name, use in self._uses.items()
            if name in self._policies and self._policies[name].is_limited and (use.took_requests or use.at_once)
        )

    def used_elsewhere(self, uses: Iterable[TenantUse], now: float) -> None:
        """All other cells together have taken so much since the last call, and have so many requests at once now."""
        for use in self._uses.values():
            use.at_once_elsewhere = 0
        for one in uses:
            if (use_here := self._uses.get(one.tenant)) is not None:
                use_here.at_once_elsewhere = one.at_once
                use_here.take_late(one.requests, one.tokens, now)

    def settle(self, tenant: str, booked: int, used: int) -> None:
        """The engine counted `used` tokens for what was booked with `booked`."""
        use = self._uses.get(tenant)
        if use is not None:
            use.take(0, used - booked)

    def at_once(self, tenant: str) -> int:
        """How many of the tenant's requests wait or run."""
        use = self._uses.get(tenant)
        return use.at_once if use is not None else 0


def booked_tokens(job: Job) -> int:
    """What the job is counted with before the engine has counted."""
    return (job.request.prompt_tokens + job.output_tokens) * job.request.sequences


def _resized(bucket: Bucket | None, per_minute: float | None, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    bucket.resize(per_minute, now)
    return bucket
