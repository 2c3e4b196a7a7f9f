"""A trace becomes a workload: classes, tenants and models of the spec, promises by class, prefixes, and clear
refusals."""

import numpy as np
import pytest

from cluster.spec import Model, parse_spec
from planning.simulator.workload import WorkloadError, workload_of
from planning.workload.changes import ChangeKind
from planning.workload.scaling import LengthLimits
from planning.workload.trace import Labels, Prefixes, Trace

SPEC = parse_spec(
    "name: x\nregions: [{name: r, pools: [{name: p}]}]\n"
    "models: [{name: m, source: s, settings: {max_model_len: 1000}}, {name: n, source: s, "
    "settings: {max_model_len: 1000}}]\n"
    f"tenants: [{{name: acme, keys: ['sha256:{'0' * 64}'], classes: [batch]}}, "
    f"{{name: ours, keys: ['sha256:{'1' * 64}']}}]\n"
)


def labels(*names: str) -> Labels:
    kept = tuple(dict.fromkeys(names))
    return Labels(kept, np.array([kept.index(name) for name in names], dtype=np.int32))


def trace(**columns: object) -> Trace:
    return Trace(np.arange(4.0), np.array([40, 80, 120, 160]), np.array([5, 6, 7, 8]), **columns)  # type: ignore[arg-type]


def with_settings(**settings: object) -> Model:
    model = SPEC.models[0]
    return model.model_copy(update={"settings": model.settings.model_copy(update=settings)})


def test_a_bare_trace_is_of_the_first_class_and_of_no_tenant() -> None:
    work = workload_of(trace(), SPEC, SPEC.models[0])
    assert list(work.ttft_slo_s) == [0.5] * 4
    assert [work.tenant[0], work.traffic_class[3]] == ["", "interactive"]
    assert (list(work.max_tokens), work.prefix[1], work.chunk_tokens) == ([0] * 4, (), 0)


def test_classes_and_tenants_are_the_specs() -> None:
    named = trace(
        tenant=labels("acme", "ours", "stranger", "acme"), traffic_class=labels("", "", "completion", "interactive")
    )
    work = workload_of(named, SPEC, SPEC.models[0])
    assert [work.tenant[index] for index in range(4)] == ["acme", "ours", "", "acme"]
    assert [work.traffic_class[index] for index in range(4)] == ["batch", "interactive", "completion", "interactive"]
    assert list(work.ttft_slo_s) == [30, 0.5, 0.1, 0.5]
    assert workload_of(named, SPEC.model_copy(update={"tenants": ()}), SPEC.models[0]).tenant[0] == ""


def test_an_unknown_class_is_refused() -> None:
    with pytest.raises(
        WorkloadError,
        match="class = 'gold' in the trace: the spec has no such class; allowed: interactive, completion, batch",
    ):
        workload_of(trace(traffic_class=labels("gold", "batch", "", "batch")), SPEC, SPEC.models[0])


def test_only_the_models_own_requests_are_taken() -> None:
    work = workload_of(trace(model=labels("m", "n", "m", "")), SPEC, SPEC.models[0])
    assert list(work.prompt_tokens) == [40, 120]
    assert len(workload_of(trace(model=labels("ChatGPT", "GPT-4", "GPT-4", "")), SPEC, SPEC.models[0])) == 4
    with pytest.raises(WorkloadError, match="no request of the trace is for model 'n'; it has those of m"):
        workload_of(trace(model=labels("m", "m", "m", "m")), SPEC, SPEC.models[1])


def test_prefixes_shrink_with_the_lengths() -> None:
    prefixes = Prefixes(20, np.arange(8), np.zeros(4, dtype=np.int64), np.array([2, 4, 6, 8], dtype=np.int32))
    whole = workload_of(trace(prefixes=prefixes), SPEC, SPEC.models[0], LengthLimits(1_000, block_tokens=10))
    assert (whole.chunk_tokens, whole.prefix[1]) == (20, (0, 1, 2, 3))
    short = with_settings(max_model_len=92)
    small = workload_of(trace(prefixes=prefixes), SPEC, short, LengthLimits(92, block_tokens=10, fit=True))
    assert small.chunk_tokens == 10
    assert list(small.prompt_tokens) == [20, 40, 60, 80]
    assert [len(small.prefix[index]) for index in range(4)] == [2, 4, 6, 8]
    assert len(set(small.prefix[3])) == 8
    assert small.prefix[3][:6] == small.prefix[2]


def test_what_the_spec_changes_is_noted() -> None:
    named = trace(
        tenant=labels("acme", "nobody", "stranger", "acme"),
        model=labels("m", "m", "m", "n"),
        region=labels("eu", "us", "eu", "us"),
    )
    work = workload_of(named, SPEC, SPEC.models[0])
    assert [(one.kind, one.count, one.of) for one in work.changes] == [
        (ChangeKind.OTHER_MODEL, 1, 4),
        (ChangeKind.REGIONS_MERGED, 3, 3),
        (ChangeKind.TENANT_UNKNOWN, 2, 3),
        (ChangeKind.CLASS_ASSUMED, 3, 3),
    ]
    assert "(nobody, stranger)" in work.changes[2].what
    assert work.changes[3].what == "name no traffic class: taken as interactive, batch"
    foreign = workload_of(trace(model=labels("ChatGPT", "GPT-4", "GPT-4", "")), SPEC, SPEC.models[0])
    assert (foreign.changes[0].kind, foreign.changes[0].count) == (ChangeKind.MODEL_NAMES_IGNORED, 3)
    assert work.head(1).changes == work.changes


@pytest.mark.parametrize("large", ["large", "default"])
def test_a_group_gets_the_requests_that_it_is_tried_first_for(large: str) -> None:
    model = SPEC.models[0].model_dump() | {
        "groups": [{"name": "small", "settings": {"max_model_len": 100}}, {"name": large}],
        "lanes": {"short": ["small", large]},
    }
    spec = SPEC.model_copy(update={"models": (Model.model_validate(model),)})
    whole = spec.models[0]
    assert len(workload_of(trace(), spec, whole)) == 4
    assert [list(workload_of(trace(), spec, view).prompt_tokens) for view in whole.views] == [[40, 80], [120, 160]]


def test_what_is_longer_than_the_context_is_rejected() -> None:
    short = with_settings(max_model_len=130)
    work = workload_of(trace(), SPEC, short)
    assert list(work.prompt_tokens) == [40, 80, 120]
    assert work.rejected == 1
    assert work.changes[0].kind is ChangeKind.CONTEXT_LENGTH_EXCEEDED
    tiny = with_settings(max_model_len=20)
    with pytest.raises(WorkloadError, match=r"all 4 are longer than models.m.settings.max_model_len = 20; .*--fit-len"):
        workload_of(trace(), SPEC, tiny)
    with pytest.raises(WorkloadError, match=r"all 4 are longer than the engine's KV cache of 30 tokens; .*--fit-len"):
        workload_of(trace(), SPEC, short, LengthLimits(130, kv_tokens=30))


def test_prefixes_that_the_engine_does_not_cache_are_noted() -> None:
    prefixes = Prefixes(32, np.arange(8), np.zeros(4, dtype=np.int64), np.array([1, 2, 3, 0], dtype=np.int32))
    plain = with_settings(prefix_caching=False)
    work = workload_of(trace(prefixes=prefixes), SPEC, plain)
    assert (work.changes[0].kind, work.changes[0].count) == (ChangeKind.PREFIXES_UNUSED, 3)
