"""The whole worksheet, and its sections about what may be bought: price kinds, quotas, candidates, tokens elsewhere."""

import zoneinfo
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from cluster.spec import GroupSettings
from cluster.spec.base import Name, RelativePath, Section, check_unique
from cluster.spec.regions import GpuName
from planning.capacity.problem import PriceKind, Quota
from planning.worksheet.demand import DemandStream, Fraction

UsdPerHour = Annotated[float, Field(gt=0, le=1_000, allow_inf_nan=False)]
UsdPerMtok = Annotated[float, Field(ge=0.001, le=10_000, allow_inf_nan=False)]
Source = Annotated[str, Field(max_length=300)]
ModelText = Annotated[str, Field(min_length=1, max_length=128)]


class Survival(Section):
    """What must not break an SLO: the loss of `any_one_region` in the hours whose demand is at least `binding_share` of
    the peak, and `replica_failures` at once in each group and region that is used."""

    any_one_region: bool = False
    binding_share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    replica_failures: Annotated[int, Field(ge=0, le=100)] = 0


class HeadroomShare(Section):
    """`spare_share`: of a replica's highest rate at the SLOs, the share that is kept free for bursts within an hour and
    errors of the forecast."""

    spare_share: Annotated[float, Field(ge=0, le=0.9, allow_inf_nan=False)] = 0.1


class SpotPrices(Section):
    """Spot capacity: at most `max_share` of a model's replicas in each hour."""

    max_share: Fraction = 0.5


class PriceKinds(Section):
    """What may be bought: `on_demand` by the hour, `spot` by the hour with its risk, `reserved` for all hours."""

    on_demand: bool = True
    spot: SpotPrices | None = None
    reserved: bool = False

    @model_validator(mode="after")
    def _has_a_kind(self) -> "PriceKinds":
        if not (self.on_demand or self.reserved or (self.spot and self.spot.max_share)):
            raise ValueError("on_demand, spot.max_share, reserved: none may be bought; allowed: at least one of them")
        return self


class GpuPrice(Section):
    """US dollars a GPU-hour (on a CPU: a replica-hour) in a region, instead of the shipped tables' and the spec's;
    `source` says where it comes from, with its date."""

    gpu: GpuName
    region: Name
    on_demand_usd_per_gpu_hour: UsdPerHour | None = None
    spot_usd_per_gpu_hour: UsdPerHour | None = None
    reserved_usd_per_gpu_hour: UsdPerHour | None = None
    source: Source = "the worksheet"

    @model_validator(mode="after")
    def _has_a_price(self) -> "GpuPrice":
        keys = [kind.price_key for kind in PriceKind]
        if all(getattr(self, key) is None for key in keys):
            raise ValueError(f"{', '.join(keys)}: none is given; allowed: at least one of them")
        return self


class GroupCandidate(Section):
    """A group that might serve a model: a GPU type, and those engine settings that are not the model's own. `lanes`:
    the spec's lanes that it may serve (None: all that fit its context). `costs`: its cost file (None: the spec's where
    that is of the same GPU, else an estimate from data sheets)."""

    name: Name
    model: ModelText
    gpu: GpuName
    settings: GroupSettings = GroupSettings()
    lanes: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    regions: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    costs: RelativePath | None = None


class TokenOffer(Section):
    """What a model's tokens cost where they are bought: US dollars a million input and output tokens."""

    model: ModelText
    usd_per_input_mtok: UsdPerMtok
    usd_per_output_mtok: UsdPerMtok
    source: Source = "the worksheet"


class TransferSizes(Section):
    """Bytes that cross between regions for each token, as JSON and server-sent events."""

    prompt_bytes_per_token: Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)] = 5.0
    answer_bytes_per_token: Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)] = 250.0


class ModelConfig(Section):
    """The `folder` that holds a model's `config.json`, where its source is not on this machine."""

    model: ModelText
    folder: RelativePath


class Worksheet(Section):
    """A question to `raylane plan`: what arrives (`demand`), what must hold, and what may be bought.

    `spec`: the cluster spec that is planned for, relative to this file. `time_zone`: an IANA name; hours are hours
    there. Without `candidates` the plan is made of the spec's own groups and pools.
    """

    version: Literal[1] = 1
    name: Name
    spec: RelativePath
    time_zone: str = "UTC"
    demand: Annotated[tuple[DemandStream, ...], Field(min_length=1, max_length=200)]
    survive: Survival = Survival()
    headroom: HeadroomShare = HeadroomShare()
    prices: PriceKinds = PriceKinds()
    gpu_prices: tuple[GpuPrice, ...] = ()
    quotas: tuple[Quota, ...] = ()
    candidates: tuple[GroupCandidate, ...] = ()
    elsewhere: tuple[TokenOffer, ...] = ()
    transfer: TransferSizes = TransferSizes()
    model_configs: tuple[ModelConfig, ...] = ()

    @field_validator("time_zone")
    @classmethod
    def _is_a_time_zone(cls, name: str) -> str:
        try:
            zoneinfo.ZoneInfo(name)
        except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
            raise ValueError("allowed: an IANA time zone, such as UTC or Europe/Berlin") from None
        return name

    @model_validator(mode="after")
    def _names_agree(self) -> "Worksheet":
        check_unique("demand.name", (one.name for one in self.demand))
        check_unique("candidates (model and name)", (f"{one.model}: {one.name}" for one in self.candidates))
        check_unique("gpu_prices (gpu and region)", (f"{one.gpu} in {one.region}" for one in self.gpu_prices))
        check_unique("quotas", (f"{one.gpu} in {one.region}, {one.price_kind or 'all kinds'}" for one in self.quotas))
        check_unique("elsewhere.model", (one.model for one in self.elsewhere))
        check_unique("model_configs.model", (one.model for one in self.model_configs))
        return self
