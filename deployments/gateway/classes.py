"""Which traffic class a request may claim."""

from cluster.spec import ClusterSpec, Tenant, TrafficClass
from deployments.openai.errors import ApiError, ErrorCode

CLASS_HEADER = b"x-raylane-class"


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
