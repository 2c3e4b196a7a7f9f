"""From the spec's words to the scheduler's: the one place that knows both."""

from cluster.spec import ClusterSpec, Tenant, TrafficClass
from deployments.gateway.errors import ApiError, ErrorCode
from deployments.ownership.lane_owner import Binding
from deployments.scheduling import LanePolicy, Order, Policy, TenantPolicy

CLASS_HEADER = b"x-raylane-class"


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


def class_of(spec: ClusterSpec, claimed: bytes, tenant: Tenant | None) -> TrafficClass:
    """The traffic class that a request claims by its header; without one, the first that its tenant may claim. Raises ApiError."""
    allowed_names = [traffic_class.name for traffic_class in spec.classes]
    if tenant is not None and tenant.classes is not None:
        allowed_names = list(tenant.classes)
    name = claimed.decode("latin-1") or allowed_names[0]
    for traffic_class in spec.classes:
        if traffic_class.name == name:
            if name not in allowed_names:
                message = f"X-Raylane-Class = {name!r}: tenant {tenant.name if tenant else ''!r} may claim {', '.join(allowed_names)}"
                raise ApiError(ErrorCode.CLASS_NOT_ALLOWED, message, param="X-Raylane-Class")
            return traffic_class
    allowed = ", ".join(allowed_names)
    raise ApiError(ErrorCode.INVALID_VALUE, f"X-Raylane-Class = {name!r}: allowed: {allowed}", param="X-Raylane-Class")
