"""Salts that keep the tenants' prompts apart in the engines' prefix caches.

Who shares a cache can tell by the time to a prompt's first token whether somebody else sent its beginning (CVE-2025-46570). vLLM's `cache_salt` is a
part of the hash of a prompt's first block, and so of all: equal prompts of other salts share nothing. A tenant's salt is a digest that only the cell
can make, since its key is the cluster's secret: whoever could guess it and reach an engine would be back in that tenant's cache.
"""

import hashlib
import hmac
from collections.abc import Callable
from functools import partial

from cluster.spec import ClusterSpec, Tenant

SaltOf = Callable[[str | None], str]
"""The salt of a request, by the client's own `cache_salt` (None: it has none)."""


class Salts:
    """The salts of a spec's tenants."""

    def __init__(self, spec: ClusterSpec, secret: str) -> None:
        self._apart = bool(spec.tenants) and spec.prefix_sharing == "tenant"
        self._key = hmac.digest(secret.encode(), b"raylane cache_salt", "sha256")

    def of(self, tenant: Tenant | None) -> SaltOf | None:
        """How a tenant's requests are salted. None: not at all, they go to the engine as they came."""
        return None if tenant is None or not self._apart else partial(_digest, self._key, tenant.name)


def with_salt(body: bytes, salt: str) -> bytes:
    """A JSON object that is not empty, with that `cache_salt` for its last member.

    Of several members with one name, however they are written, JSON parsers keep the last. The rest of the body stays as it is, to the byte.
    """
    end = body.rindex(b"}")  # nothing but white space can follow
    return b"".join((memoryview(body)[:end], b',"cache_salt":"', salt.encode(), b'"}'))


def _digest(key: bytes, tenant: str, given: str | None) -> str:
    """The client's own salt sets its requests apart from others of its tenant, and never leads out of the tenant. 64 hexadecimal digits.

    The names of tenants hold no zero byte, so that no two pairs have one text.
    """
    asked = tenant.encode() if given is None else tenant.encode() + b"\0" + given.encode()
    return hmac.new(key, asked, hashlib.sha256).hexdigest()
