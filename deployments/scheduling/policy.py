"""The scheduler's settings: lanes, shares, weights; all of it can change while requests wait (`Scheduler.configure`).

They follow from the spec, for the gateway and the simulator alike, and so do their defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.spec import ClusterSpec, LaneSpec, RequestLimits, Scheduling
from deployments.scheduling.limits import TenantPolicy
from deployments.scheduling.replica import Capacity

_LANE = LaneSpec(name="any")
_SCHEDULING = Scheduling()


class Order(StrEnum):
    """The order inside a tenant's queue."""

    DEADLINE = "deadline"
    ARRIVAL = "arrival"


_ORDER = Order(_SCHEDULING.order)


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """One lane: requests of up to `up_to_tokens` (uncached prompt plus expected output; None: any), served in
    proportion to `weight`.

    A request that has waited `max_wait_s` is promoted; more than `cap_s` seconds of work may not wait.
    """

    name: str
    up_to_tokens: int | None = None
    weight: float = _LANE.weight
    max_wait_s: float = _LANE.max_wait_s
    cap_s: float = _LANE.cap_s


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """`lanes` ascend by their bound and end with an unbounded one.

    `promoted_share` (phi) is the share of the promoted. `decode_weight` is what an output token costs, in prefill
    tokens. `stickiness_ms`: a cached prefix is left alone when using it would cost that much more expected TTFT than
    the best replica. `pick` names how replicas are chosen (`registry.py`). A tenant without a policy has weight 1 and
    no limits.
    """

    lanes: tuple[LanePolicy, ...] = (LanePolicy("all"),)
    order: Order = _ORDER
    promoted_share: float = _SCHEDULING.promoted_share
    decode_weight: float = _SCHEDULING.decode_weight
    max_waiting: int = RequestLimits().max_waiting
    stickiness_ms: float = _SCHEDULING.stickiness_ms
    tenants: Mapping[str, TenantPolicy] = field(default_factory=dict)
    pick: str = "min_ttft"

    def lane_of(self, tokens: int) -> int:
        """The index of the lane for a request of that many tokens."""
        for index, lane in enumerate(self.lanes):
            if lane.up_to_tokens is None or tokens <= lane.up_to_tokens:
                return index
        return len(self.lanes) - 1


@dataclass(frozen=True, slots=True)
class Binding:
    """How late requests are bound to a replica: see `Scheduling.bind_ahead` and `.prefill_steps` of the spec."""

    ahead: float = _SCHEDULING.bind_ahead
    prefill_steps: float = _SCHEDULING.prefill_steps

    def capacity(self, max_num_seqs: int, kv_tokens: int, step_tokens: int) -> Capacity:
        """The budgets of a replica whose engine has these limits."""
        return Capacity(max_num_seqs, round(max_num_seqs * self.ahead), kv_tokens, step_tokens, self.prefill_steps)


def policy_of(spec: ClusterSpec) -> SchedulingPolicy:
    """The scheduler's policy for a cell of that spec."""
    settings = spec.scheduling
    return SchedulingPolicy(
        lanes=tuple(
            LanePolicy(lane.name, lane.up_to_tokens, lane.weight, lane.max_wait_s, lane.cap_s) for lane in spec.lanes
        ),
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
    )


def binding_of(spec: ClusterSpec) -> Binding:
    """How late requests are bound in a cell of that spec."""
    return Binding(spec.scheduling.bind_ahead, spec.scheduling.prefill_steps)
