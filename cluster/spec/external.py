"""A service outside the cluster that answers for its models when nothing else does: `external` in the spec
(docs/pressure.md). Its key is never in the spec."""

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from cluster.spec.base import Name, Seconds, Section
from cluster.spec.deploy import SecretSource
from cluster.spec.peering import is_loopback

PICO = 10**12
"""Picodollars in a US dollar: a millionth of the price of a million tokens is a whole number of them."""
Price = Annotated[float, Field(ge=0, le=100_000)]


class External(Section):
    """An OpenAI-compatible API at `url` (up to `/v1`), the last fallback. `secret`: where its key is kept.

    `models`: its names of the models of this spec for which it may answer. `tenants`: those whose requests may go
    there, with what each may spend in a day (UTC) in each cell, in US dollars. `region`: as which region it counts for
    `residency` (None: as none, so that any residency keeps a request here). Prices are US dollars per million tokens.
    `max_tokens`: of a request that has no bound. `timeout_s`: until its answer begins.
    """

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^/?#@\s]+(/[^?#\s]+)*$", max_length=500)]
    secret: SecretSource = SecretSource(kind="file")
    models: Annotated[dict[str, Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1)]
    tenants: Annotated[dict[Name, Annotated[float, Field(gt=0, le=1_000_000)]], Field(min_length=1)]
    region: Name | None = None
    usd_per_mtok_in: Price
    usd_per_mtok_out: Price
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 1_024
    timeout_s: Seconds = 30.0

    @field_validator("url")
    @classmethod
    def _is_encrypted(cls, url: str) -> str:
        if not url.startswith("https://") and not is_loopback(url):
            raise ValueError(f"{url!r}: the key and prompts would cross the network in plain text; allowed: https://")
        return url

    def pico_usd(self, prompt_tokens: int, output_tokens: int) -> tuple[int, int]:
        """What so many tokens cost, in and out."""
        return prompt_tokens * round(self.usd_per_mtok_in * 1e6), output_tokens * round(self.usd_per_mtok_out * 1e6)
