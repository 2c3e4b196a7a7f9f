"""Every setting of the spec reaches the scheduler's policy."""

from typing import get_args

import pytest

from cluster.spec import Scheduling, parse_spec
from deployments.scheduling import Binding, Capacity, LanePolicy, Order, Rung, SchedulingPolicy, TenantPolicy
from deployments.scheduling.ladder import LadderStep
from deployments.scheduling.policy import binding_of, policy_of

EVERY_SETTING = f"""
name: test
regions: [{{name: here, pools: [{{name: cpu}}]}}]
models: [{{name: demo, source: /nowhere, settings: {{max_model_len: 1024}}}}]
lanes:
- {{name: short, up_to_tokens: 300, weight: 5, max_wait_s: 7, cap_s: 70}}
- {{name: long, weight: 2, max_wait_s: 11, cap_s: 110}}
scheduling: {{order: arrival, promoted_share: 0.3, decode_weight: 6, stickiness_ms: 80, bind_ahead: 0.5,
  prefill_steps: 4}}
gateway: {{limits: {{max_waiting: 123}}}}
tenants:
- {{name: a, keys: ["sha256:{"0" * 64}"], weight: 3, requests_per_minute: 60, tokens_per_minute: 9000,
   max_concurrency: 8}}
"""


def test_a_policy_is_made_of_every_setting() -> None:
    spec = parse_spec(EVERY_SETTING)
    assert policy_of(spec) == SchedulingPolicy(
        lanes=(LanePolicy("short", 300, 5.0, 7.0, 70.0), LanePolicy("long", None, 2.0, 11.0, 110.0)),
        order=Order.ARRIVAL,
        promoted_share=0.3,
        decode_weight=6.0,
        max_waiting=123,
        stickiness_ms=80.0,
        tenants={"a": TenantPolicy(3.0, 60.0, 9_000.0, 8)},
    )
    assert binding_of(spec) == Binding(0.5, 4)


def with_another(section: Scheduling, key: str) -> Scheduling:
    """Another value, whether or not it is one that a spec may have."""
    default, annotation = getattr(section, key), Scheduling.model_fields[key].annotation
    number = isinstance(default, int | float)
    other = default + 1 if number else next((one for one in get_args(annotation) if one != default), "another")
    return section.model_copy(update={key: other})


@pytest.mark.parametrize("key", Scheduling.model_fields)
def test_no_key_is_forgotten(key: str) -> None:
    spec = parse_spec(
        "{name: c, regions: [{name: a, pools: [{name: p}]}],"
        " models: [{name: m, source: s, settings: {max_model_len: 99}}]}"
    )
    other = spec.model_copy(update={"scheduling": with_another(spec.scheduling, key)})
    assert (policy_of(other), binding_of(other)) != (policy_of(spec), binding_of(spec))


def test_the_budgets_of_a_replica() -> None:
    assert Binding(0.5, 3).capacity(10, 5_000, 512) == Capacity(10, 5, 5_000, 512, 3)
    assert Binding(0.25, 2).capacity(10, 1, 1).ahead == 2, "2.5 is rounded to even"
    assert Binding(0.0).capacity(8, 1, 1).ahead == 0, "nobody waits inside the engine for another to end"


def test_a_policy_has_the_groups_of_its_region() -> None:
    spec = parse_spec(
        """
name: c
regions: [{name: a, pools: [{name: p}, {name: q}]}, {name: b, pools: [{name: q}]}]
models:
- {name: m, source: s, settings: {max_model_len: 800},
   groups: [{name: x, pool: p, regions: [a], settings: {max_model_len: 100}}, {name: y, pool: q}],
   lanes: {short: [x, y], medium: [y], long: [y]}}
- {name: n, source: s, settings: {max_model_len: 800}, pool: q}
"""
    )
    m, n = spec.models
    a, b = spec.regions
    policy = policy_of(spec, m, a)
    assert policy.groups == {"short": ("x", "y"), "medium": ("y",), "long": ("y",)}
    assert policy.contexts == {"x": 100, "y": 800}
    assert policy_of(spec, m, b) == policy_of(spec, n, a) == policy_of(spec), "one group is none"


def test_a_models_ladder_has_the_steps_that_can_touch_it() -> None:
    spec = parse_spec(
        """
name: c
regions: [{name: a, pools: [{name: p}]}]
models:
- {name: m, source: s, settings: {max_model_len: 800}, fallback: [{to: n, classes: [batch]}]}
- {name: n, source: s, settings: {max_model_len: 800}}
- {name: e, source: s, task: embed, settings: {max_model_len: 800}}
classes: [{name: interactive, ttft_ms: 500, attainment: 0.75}, {name: batch, ttft_ms: 9000, attainment: 0.5}]
ladder:
- {rung: clamp, classes: [batch, interactive], max_tokens: 64}
- {rung: fallback, classes: [batch, interactive]}
- {rung: shed, classes: [batch]}
"""
    )
    clamps = [LadderStep(Rung.CLAMP, "batch", 64), LadderStep(Rung.CLAMP, "interactive", 64)]
    back, shed = LadderStep(Rung.FALLBACK, "batch"), LadderStep(Rung.SHED, "batch")
    ladders = [policy_of(spec, model).ladder for model in spec.models]
    assert ladders == [(*clamps, back, shed), (*clamps, shed), (shed,)]
    assert policy_of(spec, spec.models[0]).allowed == {"interactive": 0.25, "batch": 0.5}
    assert policy_of(spec).ladder == ()
