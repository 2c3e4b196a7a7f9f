"""How replicas follow the load: which policy decides, within what, and what it looks at."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cluster.spec.base import RelativePath, Seconds, Section

Share = Annotated[float, Field(ge=0.05, le=1)]
PolicyName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
"""As the registry of policies has it (`autoscaling/policies/registry.py`)."""
Setting = float | int | bool | str | None


class Backlog(Section):
    """The settings of the backlog policy. `docs/autoscaling.md` explains each; `raylane tune` proposes values.

    `utilisation`: the share of a replica's capacity, sequences and KV blocks that the load may use. `short_cost`: the
    cost of one missing replica, in spare replicas. `down_after_s`: how long fewer replicas must have sufficed before a
    step down. `zero_after_s`: the last replica is removed after so long without a request (if `replicas.min` is 0).
    """

    utilisation: Share = 0.9
    short_cost: Annotated[float, Field(ge=0.01, le=1e6)] = 30.0
    down_after_s: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    zero_after_s: Annotated[float, Field(ge=0, le=604_800)] = 300.0


class PolicySpec(Section):
    """A scaling policy: `backlog` with its knobs, `fixed`, or one that was added (`autoscaling/policies/registry.py`),
    with `settings` of its own. `auto`: `backlog` where `replicas.min` is less than `replicas.max`, else `fixed`."""

    policy: PolicyName = "auto"
    backlog: Backlog = Backlog()
    settings: dict[str, Setting] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_policy(self) -> "PolicySpec":
        if self.settings and self.policy in ("auto", "fixed", "backlog"):
            raise ValueError(
                f"settings = {sorted(self.settings)}: not allowed with policy = {self.policy!r}; the backlog policy's "
                "settings are in `autoscaling.backlog`"
            )
        return self


class Rollback(Section):
    """When a promoted policy (`raylane shadow promote`) is rolled back automatically: within `within_s` of the
    promotion, SLOs were missed `burn` times as fast as the SLO allows, over `span_s`."""

    within_s: Seconds = 1_800.0
    span_s: Seconds = 120.0
    burn: Annotated[float, Field(ge=1, le=1e6)] = 10.0


class Autoscaling(PolicySpec):
    """How the number of replicas follows the load. `fixed` keeps each model's `replicas.count`, and must be asked for
    where `replicas` has room to scale.

    The policy decides every `period_s`. `forecast: seasonal` gives the backlog policy a lower bound from past arrivals,
    by day and week (`autoscaling/forecast`). In any 60 s, at most `up_per_minute` replicas are added and
    `down_per_minute` removed. `usd_per_hour`: the most that the replicas of each group may cost in each cell, by the
    price of its pool. The number does not change while the scheduler's state is older than `stale_s`. An unresponsive
    replica forbids steps down for `unresponsive_s`. A replica that has no node after `unschedulable_s` counts as
    impossible, and is requested again after `retry_s`. `costs`: a cost file of the engine, relative to the spec's file,
    from which policies know a replica's capacity before it is measured (default: the cost file of a simulated engine).
    `shadow`: a second policy that decides, but is not applied. `rollback`: when a promoted policy is rolled back.
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
    costs: RelativePath | None = None
    shadow: PolicySpec | None = None
    rollback: Rollback = Rollback()
