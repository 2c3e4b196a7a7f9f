"""Who asks, and as which traffic class. Of API keys only digests are kept. Without tenants in the spec anybody may
ask (and the gateway listens on loopback alone)."""

import hashlib
import hmac

from cluster.spec import ClusterSpec, Tenant, TrafficClass
from deployments.openai.errors import ApiError, ErrorCode

_SCHEME = "sha256:"
_BEARER = b"bearer "
_UNKNOWN = "Incorrect API key provided: it is not known here"
"""It begins with OpenAI's own words: litellm tells a wrong key from a bad request by them, and by nothing else."""


class KeyRing:
    """The keys of a spec's tenants."""

    def __init__(self, tenants: tuple[Tenant, ...]) -> None:
        self._digests = [
            (bytes.fromhex(key.removeprefix(_SCHEME)), tenant) for tenant in tenants for key in tenant.keys
        ]

    def tenant_of(self, authorization: bytes, api_key: bytes = b"") -> Tenant | None:
        """The tenant whose key an `Authorization` header carries, or where there is none an `x-api-key` header, as
        Anthropic's clients send it. None where the spec has no tenants. Raises ApiError.

        Every digest is compared, each in constant time, so that the time says nothing of which key was near.
        """
        if not self._digests:
            return None
        if authorization:
            is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
            api_key = authorization[len(_BEARER) :].strip() if is_bearer else b""
        if not api_key:
            message = "no API key: send `Authorization: Bearer <key>`, or `x-api-key: <key>`"
            raise ApiError(ErrorCode.INVALID_KEY, message, headers={"www-authenticate": "Bearer"})
        given = hashlib.sha256(api_key).digest()
        found: Tenant | None = None
        for digest, tenant in self._digests:
            if hmac.compare_digest(digest, given):
                found = tenant
        if found is None:
            raise ApiError(ErrorCode.INVALID_KEY, _UNKNOWN, headers={"www-authenticate": "Bearer"})
        return found


def digest_of(key: str) -> str:
    return _SCHEME + hashlib.sha256(key.encode()).hexdigest()


CLASS_HEADER = b"x-raylane-class"


def class_of(spec: ClusterSpec, claimed: bytes, tenant: Tenant | None) -> TrafficClass:
    """The traffic class that a request claims by its header; without one, the first that its tenant may claim. Raises
    ApiError."""
    allowed_names = [traffic_class.name for traffic_class in spec.classes]
    if tenant is not None and tenant.classes is not None:
        allowed_names = list(tenant.classes)
    name = claimed.decode("latin-1") or allowed_names[0]
    for traffic_class in spec.classes:
        if traffic_class.name == name:
            if name not in allowed_names:
                message = (
                    f"X-Raylane-Class = {name!r}: tenant {tenant.name if tenant else ''!r} may claim "
                    f"{', '.join(allowed_names)}"
                )
                raise ApiError(ErrorCode.CLASS_NOT_ALLOWED, message, param="X-Raylane-Class")
            return traffic_class
    allowed = ", ".join(allowed_names)
    raise ApiError(ErrorCode.INVALID_VALUE, f"X-Raylane-Class = {name!r}: allowed: {allowed}", param="X-Raylane-Class")
