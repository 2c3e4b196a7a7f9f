"""How the cells of a cluster help each other: whom they trust, how often they exchange digests, when a request is
handed over.

The decisions are in `deployments/peering`. Which regions may serve a request is said by the model, the tenant and the
class (`residency`).
"""

import ipaddress
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from cluster.spec.base import RelativePath, Seconds, Section
from cluster.spec.deploy import SecretSource, has_a_port_that_there_is

Endpoint = Annotated[
    str,
    StringConstraints(pattern=r"^https?://([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?$"),
    AfterValidator(has_a_port_that_there_is),
]
"""The URL of a region's gateways: scheme, host and perhaps a port; no path, and no slash at the end."""


class PeerTls(Section):
    """Mutual TLS between cells: PEM files on each node with a gateway. `cert` (with its chain) and `key` are this
    cell's own, whose region's name is one of the certificate's DNS names; `ca` is the certificate of the authority that
    signs those of all cells, and of nobody else."""

    cert: RelativePath
    key: RelativePath
    ca: RelativePath


class HandOverSettings(Section):
    """When a request is handed over: the wait there must be shorter than the wait here by `margin_s` (seconds) plus
    `margin_share` of the wait here.

    `jitter`: the margin of each request is drawn within this share of it, by a hash of its id, so that not all
    requests move at the same moment. `max_load`: a peer whose sequences or KV blocks are in use to this share gets
    nothing more; the rest is for its own clients. `max_prefill_share`: while what is on its way to a peer takes it
    longer to prefill than this share of the class's TTFT, no more goes there, since prompts that come together hold
    up the peer's own clients; what its home cannot serve at all goes all the same. `quiet_s`: after a hand-over from a
    peer, none goes back to it for so long. `price_share`: a class that prefers price is handed over to a cell that is
    cheaper by this share.
    """

    margin_s: Annotated[float, Field(ge=0, le=3_600)] = 0.1
    margin_share: Annotated[float, Field(ge=0, le=10)] = 0.25
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.5
    max_load: Annotated[float, Field(gt=0, le=1)] = 0.8
    max_prefill_share: Annotated[float, Field(gt=0, le=1)] = 0.07
    quiet_s: Seconds = 10.0
    price_share: Annotated[float, Field(ge=0, lt=1)] = 0.1


class Peering(Section):
    """The gateways of all regions exchange digests and hand requests over. Each region needs an `endpoint`.

    Peers prove who they are by a `secret` that all cells share (where it is kept, never its value), by mutual `tls`, or
    by both. `plaintext`: endpoints beyond loopback may be `http://`, where the network between the cells encrypts.

    A peer is asked for its digest every `digest_period_s` (seconds). What a digest is worth halves every `half_life_s`
    once it is older than a period; after `max_age_s` it is worth nothing.
    """

    secret: SecretSource | None = None
    tls: PeerTls | None = None
    plaintext: bool = False
    digest_period_s: Annotated[float, Field(ge=0.05, le=60)] = 1.0
    half_life_s: Seconds = 0.5
    max_age_s: Seconds = 2.0
    hand_over: HandOverSettings = HandOverSettings()

    @model_validator(mode="after")
    def _can_be_proved(self) -> "Peering":
        if self.secret is None and self.tls is None:
            raise ValueError("secret and tls: both missing; needed: a secret that the cells share, or mutual TLS")
        if self.max_age_s <= self.digest_period_s:
            raise ValueError(
                f"max_age_s = {self.max_age_s:g}: allowed: above digest_period_s = {self.digest_period_s:g}, or a "
                "digest is worth nothing before the next one comes"
            )
        return self

    def check_endpoints(self, endpoints: Mapping[str, str | None]) -> None:
        """Raises ValueError for endpoints, by region, through which peers cannot reach each other safely."""
        if len(endpoints) < 2:
            raise ValueError(f"peering: the only region is {next(iter(endpoints))}; needed: at least two regions")
        seen: dict[str, str] = {}
        for region, endpoint in endpoints.items():
            if endpoint is None:
                raise ValueError(f"regions.{region}.endpoint: missing; `peering` needs that of each region")
            if endpoint in seen:
                raise ValueError(
                    f"regions.{region}.endpoint = {endpoint!r}: allowed: another one than that of {seen[endpoint]}"
                )
            seen[endpoint] = region
            secured = endpoint.startswith("https://")
            if self.tls is not None and not secured:
                raise ValueError(
                    f"regions.{region}.endpoint = {endpoint!r}: allowed: https://, since peering.tls is set"
                )
            if not (secured or self.plaintext or is_loopback(endpoint)):
                raise ValueError(
                    f"regions.{region}.endpoint = {endpoint!r}: prompts would cross the network in plain text; "
                    "allowed: https://, or peering.plaintext: true where the network encrypts"
                )


def is_loopback(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
