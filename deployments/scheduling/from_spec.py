"""From the spec's words to the scheduler's: the one place that knows both. The gateway and the simulator go through it alike."""

from cluster.spec import ClusterSpec
from deployments.scheduling.binding import Binding
from deployments.scheduling.limits import TenantPolicy
from deployments.scheduling.policy import LanePolicy, Order, Policy


def policy_of(spec: ClusterSpec) -> Policy:
    """The scheduler's policy for a cell of that spec."""
    settings = spec.scheduling
    return Policy(
        lanes=tuple(LanePolicy(lane.name, lane.up_to_tokens, lane.weight, lane.max_wait_s, lane.cap_s) for lane in spec.lanes),
        order=Order(settings.order),
        promoted_share=settings.promoted_share,
        decode_weight=settings.decode_weight,
        max_waiting=spec.gateway.limits.max_waiting,
        stickiness_ms=settings.stickiness_ms,
        tenants={
            tenant.name: TenantPolicy(tenant.weight, tenant.requests_per_minute, tenant.tokens_per_minute, tenant.max_concurrency)
            for tenant in spec.tenants
        },
    )


def binding_of(spec: ClusterSpec) -> Binding:
    """How late requests are bound in a cell of that spec."""
    return Binding(spec.scheduling.bind_ahead, spec.scheduling.prefill_steps)
