"""The sections of a worksheet that say what arrives: rates by region and hour, lengths, growth, SLOs.

Units are in the keys: requests a second, tokens, milliseconds, per cent, shares from 0 to 1.
"""

import math
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from cluster.spec.base import Name, RelativePath, Section, check_unique, refuse_truth_value

DAY_HOURS, WEEK_HOURS = 24, 168


_NUMBER = BeforeValidator(refuse_truth_value)
"""In lists, which `Section` does not look into: pydantic would read `true` as 1."""
RequestsPerS = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False), _NUMBER]
Weight = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False), _NUMBER]
TokenCount = Annotated[int, Field(ge=1, le=10_000_000), _NUMBER]
MeanTokens = Annotated[float, Field(ge=1, le=10_000_000, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
P95_DEVIATIONS = 1.6448536
"""Standard deviations from the mean to the 95th percentile of a normal distribution."""
WIDEST_P95 = math.exp(P95_DEVIATIONS**2 / 2)
"""The largest quotient of p95 and mean that a log-normal distribution has."""


class RegionRate(Section):
    """Requests that arrive in a region: `requests_per_s` on average, by `shape` (24 or 168 relative figures, one an
    hour; without it, all hours are alike), or `hourly_requests_per_s` (24 or 168 figures). Hours begin at midnight, 168
    of them on Monday, in the worksheet's time zone."""

    region: Name
    requests_per_s: RequestsPerS | None = None
    shape: tuple[Weight, ...] | None = None
    hourly_requests_per_s: tuple[RequestsPerS, ...] | None = None

    @model_validator(mode="after")
    def _has_one_form(self) -> "RegionRate":
        if (self.requests_per_s is None) == (self.hourly_requests_per_s is None):
            raise ValueError("requests_per_s and hourly_requests_per_s: allowed: exactly one of them")
        if self.shape is not None and self.requests_per_s is None:
            raise ValueError("shape: allowed with requests_per_s only; hourly_requests_per_s has a shape of its own")
        for key in ("shape", "hourly_requests_per_s"):
            figures = getattr(self, key)
            if figures is not None and len(figures) not in (DAY_HOURS, WEEK_HOURS):
                raise ValueError(f"{key}: {len(figures)} figures; allowed: 24 (a day) or 168 (a week from Monday)")
        if self.shape is not None and not sum(self.shape):
            raise ValueError("shape = all zeros: allowed: at least one figure above 0")
        return self

    def hourly(self) -> tuple[float, ...]:
        """Requests a second in each hour: 24 or 168 figures."""
        if self.hourly_requests_per_s is not None:
            return self.hourly_requests_per_s
        shape = self.shape or (1.0,) * DAY_HOURS
        scale = (self.requests_per_s or 0.0) * len(shape) / sum(shape)
        return tuple(scale * figure for figure in shape)


class TokenLengths(Section):
    """How many tokens a prompt or an answer has: `mean` and `p95` (of a log-normal distribution; without `p95` all are
    alike), or `values` with their `weights` (without weights, equally often)."""

    mean: MeanTokens | None = None
    p95: MeanTokens | None = None
    values: Annotated[tuple[TokenCount, ...], Field(min_length=1)] | None = None
    weights: tuple[Weight, ...] | None = None

    @model_validator(mode="after")
    def _has_one_form(self) -> "TokenLengths":
        if (self.mean is None) == (self.values is None):
            raise ValueError("mean and values: allowed: exactly one of them")
        if self.p95 is not None and self.mean is None:
            raise ValueError("p95: allowed with mean only")
        if self.mean is not None and self.p95 is not None and not 1 <= self.p95 / self.mean <= WIDEST_P95:
            raise ValueError(
                f"p95 = {self.p95:g}: allowed: {self.mean:g} to {WIDEST_P95 * self.mean:.0f} tokens (1 to "
                f"{WIDEST_P95:.2f} times the mean); give values and weights for a wider distribution"
            )
        if self.weights is not None:
            if self.values is None or len(self.weights) != len(self.values):
                raise ValueError(f"weights: {len(self.weights)} figures; allowed: one for each of `values`")
            if not sum(self.weights):
                raise ValueError("weights = all zeros: allowed: at least one figure above 0")
        return self

    @property
    def sigma(self) -> float:
        """The deviation of the logarithm: of mean exp(mu + sigma^2 / 2) and p95 exp(mu + 1.645 sigma), the smaller
        solution."""
        if self.mean is None or self.p95 is None:
            return 0.0
        inner = P95_DEVIATIONS**2 - 2 * math.log(self.p95 / self.mean)
        return P95_DEVIATIONS - math.sqrt(max(0.0, inner))


class TraceSource(Section):
    """Recorded traffic: a gateway's recording, or a trace or a traffic file (docs/traffic.md) whose second 0 is at
    `start_hour` of the worksheet's day (or week). Rates are means by hour of day, or of the week where it covers seven
    days; a trace shorter than a day gives all hours its mean rate. `region`: where requests come from that name none.
    `scale` multiplies the rates."""

    file: RelativePath
    region: Name | None = None
    start_hour: Annotated[int, Field(ge=0, lt=WEEK_HOURS)] = 0
    scale: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = 1.0


class Growth(Section):
    """Rates grow by `percent_per_month`, compounded, for `months`: the plan is for then."""

    percent_per_month: Annotated[float, Field(ge=-50, le=200, allow_inf_nan=False)]
    months: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)]

    @property
    def factor(self) -> float:
        """What rates are multiplied by."""
        return float((1 + self.percent_per_month / 100) ** self.months)


class StreamSlo(Section):
    """The SLO of a stream, where it differs from its class's: the share `attainment` gets the first token within
    `ttft_ms`; `itl_ms` is the mean time between tokens that an answer may have."""

    ttft_ms: Annotated[float, Field(ge=1, le=3_600_000, allow_inf_nan=False)] | None = None
    itl_ms: Annotated[float, Field(ge=0.1, le=60_000, allow_inf_nan=False)] | None = None
    attainment: Annotated[float, Field(ge=0.5, lt=1)] | None = None


class DemandStream(Section):
    """Requests of one model and class that count as alike.

    Rates and lengths are given here, or come from a `trace`. `tenants`: whose requests they are, for whoever compares
    them with a bill. `prefix_share`: the share of prompt tokens that a replica's prefix cache holds. `residency`: the
    regions in which they may be served (None: anywhere).
    """

    name: Name
    model: Annotated[str, Field(min_length=1, max_length=128)]
    traffic_class: Annotated[Name, Field(alias="class")]
    tenants: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    rates: Annotated[tuple[RegionRate, ...], Field(min_length=1)] | None = None
    input_tokens: TokenLengths | None = None
    output_tokens: TokenLengths | None = None
    trace: TraceSource | None = None
    prefix_share: Fraction = 0.0
    growth: Growth | None = None
    residency: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    slo: StreamSlo = StreamSlo()

    @model_validator(mode="after")
    def _has_one_source(self) -> "DemandStream":
        given = [key for key in ("rates", "input_tokens", "output_tokens") if getattr(self, key) is not None]
        if self.trace is not None and given:
            raise ValueError(f"trace and {given[0]}: allowed: a trace, or rates with input_tokens and output_tokens")
        if self.trace is None and len(given) < 3:
            missing = next(key for key in ("rates", "input_tokens", "output_tokens") if key not in given)
            raise ValueError(f"{missing}: missing; allowed: rates with input_tokens and output_tokens, or a trace")
        check_unique("rates.region", (rate.region for rate in self.rates or ()))
        return self

    @property
    def factor(self) -> float:
        """What rates are multiplied by, for growth."""
        return 1.0 if self.growth is None else self.growth.factor
