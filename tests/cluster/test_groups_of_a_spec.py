"""Groups of a model in the spec: their views, the lanes that they serve, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.spec import DEFAULT_GROUP, ClusterSpec, parse_spec
from tests.cluster.test_cluster_spec_refusals import problem

TEXT = """
name: c
regions:
- {name: a, pools: [{name: l4, accelerator: L4, gpus_per_node: 1}, {name: h100, accelerator: H100, gpus_per_node: 8}]}
- {name: b, pools: [{name: h100, accelerator: H100, gpus_per_node: 8}]}
models:
- name: org/m
  source: org/m
  settings: {max_model_len: 32768, max_num_seqs: 64, tensor_parallel_size: 2}
  replicas: {count: 2}
  groups:
  - {name: cheap, pool: l4, regions: [a], settings: {max_model_len: 8192, tensor_parallel_size: 1, enforce_eager: true}}
  - {name: dear, pool: h100, source: org/m-fp8, replicas: {count: 1}}
  lanes: {short: [cheap, dear], medium: [dear, cheap], long: [dear]}
"""
SPEC = parse_spec(TEXT)
MODEL = SPEC.models[0]


def changed(before: str, after: str) -> str:
    assert TEXT.count(before) == 1, before
    return TEXT.replace(before, after)


def test_a_view_is_the_model_with_what_the_group_has_of_its_own() -> None:
    cheap, dear = SPEC.groups_of(MODEL)
    assert (cheap.group, cheap.group_key, cheap.where) == ("cheap", "org/m@cheap", "models.org/m.groups.cheap")
    assert (cheap.settings.max_model_len, cheap.settings.ranks, cheap.settings.enforce_eager) == (8_192, 1, True)
    assert (cheap.settings.max_num_seqs, cheap.source, cheap.replicas.count) == (64, "org/m", 2), "the model's"
    assert (dear.settings, dear.source, dear.replicas.count) == (MODEL.settings, "org/m-fp8", 1)
    assert (cheap.groups, cheap.lanes, cheap.name) == ((), {}, "org/m")
    assert SPEC.groups_of(cheap) == (cheap,), "a view is its own view"


def test_a_view_is_found_by_its_region() -> None:
    a, b = SPEC.regions
    cheap, dear = MODEL.views
    assert SPEC.groups_of(MODEL, a) == (cheap, dear)
    assert SPEC.groups_of(MODEL, b) == (dear,) == SPEC.views_in(b)
    assert SPEC.regions_of(MODEL) == (a, b)
    assert SPEC.regions_of(cheap) == (a,)
    assert (SPEC.pool_of(cheap, a).name, SPEC.pool_of(dear, a).name) == ("l4", "h100")
    assert (SPEC.context_of(MODEL), SPEC.context_of(cheap)) == (32_768, 8_192)
    assert (SPEC.min_replicas(MODEL), SPEC.max_replicas(cheap), SPEC.max_replicas(dear)) == (3, 2, 1)
    assert MODEL.sources == ("org/m", "org/m-fp8")


def test_what_is_streamed_is_not_fetched_before_whichever_group_has_it() -> None:
    streamed = TEXT.replace("org/m-fp8", "/m-fp8").replace("source: org/m", "load: stream\n  source: /m")
    (model,) = parse_spec(streamed).models
    assert (model.load, model.cached_sources) == ("stream", ())


def test_lanes_name_their_groups_in_order() -> None:
    a, b = SPEC.regions
    assert SPEC.lane_groups(MODEL) == SPEC.lane_groups(MODEL, a) == {**MODEL.lanes}
    assert SPEC.lane_groups(MODEL, b) == dict.fromkeys(MODEL.lanes, ("dear",))
    unnamed = parse_spec(TEXT.replace("medium: [dear, cheap], ", ""))
    assert unnamed.lane_groups(unnamed.models[0])["medium"] == ("cheap", "dear"), "all, as they are listed"


def test_without_groups_a_model_is_its_own_view() -> None:
    plain = parse_spec(TEXT[: TEXT.index("  groups:")])
    model = plain.models[0]
    assert plain.groups_of(model) == plain.views_in() == (model,)
    assert (model.group, model.group_key, model.where) == (DEFAULT_GROUP, "org/m", "models.org/m")
    assert set(plain.lane_groups(model).values()) == {(DEFAULT_GROUP,)}
    assert plain.context_of(model) == 32_768


def test_a_spec_with_groups_comes_back() -> None:
    assert ClusterSpec.model_validate_json(SPEC.model_dump_json()) == SPEC
    assert ClusterSpec.model_validate(SPEC.model_dump(exclude_defaults=True)) == SPEC


@given(st.sampled_from([None, 64, 256, 1_024]), st.sampled_from([None, False, True]))
def test_a_setting_of_a_group_stands_even_where_it_is_the_default(seqs: int | None, caching: bool | None) -> None:
    """The model's setting is neither the group's nor the default."""
    group = TEXT.replace("enforce_eager: true", f"max_num_seqs: {seqs or 'null'}, prefix_caching: {caching or 'null'}")
    group = group.replace("prefix_caching: null", f"prefix_caching: {'null' if caching is None else 'false'}")
    spec = ClusterSpec.model_validate(parse_spec(group).model_dump(exclude_defaults=True))
    settings = spec.models[0].views[0].settings
    assert settings.max_num_seqs == (seqs or 64)
    assert settings.prefix_caching is (caching is not False)


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        ("long: [dear]", "long: [daer]", "models.org/m.lanes.long = 'daer': unknown; allowed: cheap, dear"),
        ("long: [dear]", "lang: [dear]", "models.org/m.lanes = 'lang': unknown; allowed: short, medium, long"),
        ("long: [dear]", "long: [dear, dear]", "models.org/m.lanes.long: 'dear' appears twice; names must be unique"),
        ("long: [dear]", "long: []", "models.0.lanes.long = []: allowed: a list of at least 1"),
        ("name: dear", "name: cheap", "groups.name: 'cheap' appears twice; names must be unique"),
        ("[cheap, dear]", "[cheap]", "models.org/m.lanes.short: no group serves it in b; needed: one of dear"),
        (
            "{short: [cheap, dear], medium: [dear, cheap], long: [dear]}",
            "{short: [dear], medium: [dear], long: [dear]}",
            "models.org/m.groups.cheap: serves no lane; needed: a lane of models.org/m.lanes with it",
        ),
        ("max_model_len: 8192", "max_model: 8192", "models.0.groups.0.settings.max_model = 8192: unknown key"),
        ("max_model_len: 8192", "seed: 1", "models.0.groups.0.settings.seed = 1: unknown key"),
        ("max_model_len: 8192", "max_model_len: 3", "models.0.groups.0.settings.max_model_len = 3: allowed: a whole"),
        ("enforce_eager: true", "max_num_seqs: true", "models.0.groups.0.settings.max_num_seqs = True: allowed:"),
        ("pool: l4", "pool: l5", "models.org/m.groups.cheap.pool: 'l5' is unknown; allowed: l4, h100"),
        ("regions: [a], ", "regions: [c], ", "models.org/m.groups.cheap.regions = 'c': unknown; allowed: a, b"),
        (
            "tensor_parallel_size: 1",
            "tensor_parallel_size: 4",
            "models.org/m.groups.cheap.settings.tensor_parallel_size = 4: no node of a has so many GPUs",
        ),
        (
            "pool: h100, ",
            "pool: h100, autoscaling: {policy: backlog}, ",
            "models.org/m.groups.dear.replicas.max: missing; autoscaling.policy = 'backlog' needs the maximum",
        ),
        ("source: org/m\n", "source: org/m\n  group: x\n", "group = 'x': allowed only without `groups`"),
        (
            "source: org/m-fp8, ",
            "simulated: {costs: c.json}, ",
            "groups.dear: engine = 'vllm' with a `simulated` section",
        ),
        (
            "- name: org/m\n",
            "- {name: org-m-cheap, source: s, settings: {max_model_len: 99}}\n- name: org/m\n",
            "models and their groups, as names of Serve applications: 'org-m-cheap' appears twice",
        ),
    ],
)
def test_refusals_name_key_value_and_what_is_allowed(before: str, after: str, reported: str) -> None:
    assert reported in problem(changed(before, after))


def test_lanes_need_groups() -> None:
    groups = TEXT[TEXT.index("  groups:") : TEXT.index("  lanes:")]
    assert "lanes: allowed only with `groups`" in problem(changed(groups, ""))
