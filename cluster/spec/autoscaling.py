"""How replicas follow the load: which policy decides, within what, and what it looks at."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from cluster.spec.base import Seconds, Section, beside_the_spec

Share = Annotated[float, Field(ge=0.05, le=1)]
PolicyName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
"""As the registry of policies has it (`autoscaling/policies/registry.py`)."""
Setting = float | int | bool | str | None


class Backlog(Section):
    """The knobs of the backlog policy; `docs/autoscaling.md` says what each does, `raylane tune` proposes values.

    `target_wait`: the share of a class's TTFT that its requests may spend in the lane; `long_wait_s`: what the last
    lane may wait at least. `utilisation`: the share of a replica's capacity that demand may fill. `short_cost`: what a
    replica too few costs, in replicas too many. `recover_s`: in how many seconds a backlog over its target shall be
    gone, once new replicas are there. `occupancy`: the share of sequences or KV blocks that may be booked. `level_s`:
    over how many seconds demand is averaged at most. `trend`: whether demand is extrapolated by the time of a start.
    `down_after_s`: for how long fewer must have sufficed, and never less than `down_starts` times what a start takes;
    `margin`: by how much of a replica, and by how much more must be needed. `reversal_spans`: for so many times as
    long, after a step up, none goes down, unless the load has fallen by a replica's worth, and a step down that must be
    taken back within that makes the next ones wait longer. `zero_after_s`: idle for so long, the last replica goes
    (where `replicas.min` is 0). `burn`: SLOs missed so many times as fast as the SLO allows add a replica whatever the
    rest says.
    """

    target_wait: Annotated[float, Field(ge=0, le=1)] = 0.5
    long_wait_s: Annotated[float, Field(ge=0, le=86_400)] = 5.0
    utilisation: Share = 0.98
    short_cost: Annotated[float, Field(ge=0.01, le=1e6)] = 10.0
    recover_s: Annotated[float, Field(ge=0.1, le=86_400)] = 60.0
    occupancy: Share = 0.95
    level_s: Annotated[float, Field(ge=5, le=600)] = 600.0
    trend: bool = True
    down_after_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    down_starts: Annotated[float, Field(ge=0, le=100)] = 1.0
    margin: Annotated[float, Field(ge=0, le=1)] = 0.25
    reversal_spans: Annotated[float, Field(ge=0, le=100)] = 2.0
    zero_after_s: Annotated[float, Field(ge=0, le=604_800)] = 300.0
    burn: Annotated[float, Field(ge=0.1, le=1e6)] = 10.0


class PolicySpec(Section):
    """A scaling policy: `backlog` with its knobs, `fixed`, or a ported rival with `settings` of its own
    (`autoscaling/policies/registry.py`)."""

    policy: PolicyName = "fixed"
    backlog: Backlog = Backlog()
    settings: dict[str, Setting] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_policy(self) -> "PolicySpec":
        if self.settings and self.policy in ("fixed", "backlog"):
            raise ValueError(
                f"settings = {sorted(self.settings)}: not allowed with policy = {self.policy!r}; the backlog policy's "
                "settings are in `autoscaling.backlog`"
            )
        return self


class Rollback(Section):
    """When a promoted policy (`raylane shadow promote`) is taken back by itself: within `within_s` of the promotion,
    SLOs were missed `burn` times as fast as the SLO allows over `span_s`."""

    within_s: Seconds = 1_800.0
    span_s: Seconds = 120.0
    burn: Annotated[float, Field(ge=1, le=1e6)] = 10.0


class Autoscaling(PolicySpec):
    """How replicas follow the load. `fixed` keeps each model's `replicas.count`.

    The policy is asked every `period_s`. `forecast`: `seasonal` gives the backlog policy what is expected to arrive, by
    day and week, from what arrived before (`autoscaling/forecast`), as a floor under what it wants by itself. At most
    `up_per_minute` replicas are added and `down_per_minute` taken away in any 60 s. `usd_per_hour`: what all replicas
    of a model may cost at most, by its pool's price. Books older than `stale_s` are not decided by; an unresponsive
    replica forbids steps down for `unresponsive_s`; what has not started after `unschedulable_s` counts as impossible,
    and is tried again after `retry_s`. `costs`: a cost file of the engine, relative to the spec's own file, from which
    policies know what a replica can do before they have seen it (a simulated engine's own, where none is named).
    `shadow`: a second policy that runs beside, un-actuated; `rollback`: when one that was promoted is taken back.
    """

    period_s: Annotated[float, Field(ge=0.2, le=600)] = 1.0
    forecast: Literal["none", "seasonal"] = "none"
    up_per_minute: Annotated[float, Field(gt=0, le=100_000)] | None = None
    down_per_minute: Annotated[float, Field(gt=0, le=100_000)] | None = None
    usd_per_hour: Annotated[float, Field(gt=0, le=1e7)] | None = None
    stale_s: Seconds = 5.0
    unresponsive_s: Seconds = 60.0
    unschedulable_s: Seconds = 900.0
    retry_s: Seconds = 300.0
    costs: Annotated[str, Field(min_length=1)] | None = None
    shadow: PolicySpec | None = None
    rollback: Rollback = Rollback()

    @field_validator("costs")
    @classmethod
    def _is_beside_the_spec(cls, costs: str | None, info: ValidationInfo) -> str | None:
        return None if costs is None else beside_the_spec(costs, info)
