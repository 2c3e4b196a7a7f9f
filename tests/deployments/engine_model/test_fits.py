"""Whose costs a file holds: what is simulated, and what is said."""

from pathlib import Path

import pytest

from cluster.files import shipped
from cluster.spec import Model, Pool, Speculative, load_spec
from deployments.engine_model.cost_file import CostFile, SpeculationCosts, cost_file, read_cost_file
from deployments.engine_model.cost_model import CostModel, Curve, line, plain_attention
from deployments.engine_model.fits import limits_for, misfits, names_accelerator
from deployments.engine_model.limits import EngineModelLimits, Speculation
from planning.unmodelled import UnmodelledKind, unmodelled


@pytest.fixture
def fitting() -> tuple[Model, Pool, CostFile]:
    """A shipped model, its pool, and the costs beside it."""
    spec = load_spec(Path(str(shipped("specs/simulated-h100.yaml"))))
    model = spec.models[0]
    assert model.simulated is not None
    return model, spec.pool_of(model, spec.regions[0]), read_cost_file(Path(model.simulated.costs))


def with_settings(model: Model, **settings: object) -> Model:
    return model.model_copy(update={"settings": model.settings.model_copy(update=settings)})


def test_a_file_of_this_engine_fits(fitting: tuple[Model, Pool, CostFile]) -> None:
    assert misfits(*fitting) == ()


def test_what_the_spec_lowers_is_simulated_and_what_it_raises_is_said(fitting: tuple[Model, Pool, CostFile]) -> None:
    model, pool, file = fitting
    lower = with_settings(model, max_num_seqs=64, max_num_batched_tokens=2_048)
    limits = limits_for(lower, pool, file)
    assert (limits.sequences, limits.step_tokens, misfits(lower, pool, file)) == (64, 2_048, ())
    higher = with_settings(model, max_num_batched_tokens=16_384)
    assert limits_for(higher, pool, file).step_tokens == 8_192
    assert "max_num_batched_tokens = 16384: the costs are known up to 8192" in misfits(higher, pool, file)[0]
    assert "KV tokens" in misfits(with_settings(model, max_model_len=1 << 20), pool, file)[0]


@pytest.mark.parametrize(
    ("accelerator", "fits"), [("H100", True), ("H100-80G", True), ("L40S", False), ("L4", False), ("cpu", True)]
)
def test_another_accelerator_is_said(fitting: tuple[Model, Pool, CostFile], accelerator: str, fits: bool) -> None:
    model, pool, file = fitting
    other = pool.model_copy(update={"accelerator": accelerator})
    assert (misfits(model, other, file) == ()) is fits
    assert misfits(model, other, file.model_copy(update={"basis": "measured", "hardware": "this machine"})) == ()


@pytest.mark.parametrize(
    ("hardware", "accelerator", "fits"),
    [
        ("1 x RTX 5090", "RTX-3090", False),
        ("1 x RTX 3090", "RTX-3090", True),
        ("2 x A100 40GB", "A100-80G", False),
        ("2 x A100-80GB", "A100-80G", True),
        ("2 x A100 80GB", "A100", True),
        ("1 x H100 SXM", "H100-PCIE", False),
    ],
)
def test_a_title_names_the_whole_type(hardware: str, accelerator: str, fits: bool) -> None:
    assert names_accelerator(hardware, accelerator) is fits


def test_another_model_is_said(fitting: tuple[Model, Pool, CostFile]) -> None:
    model, pool, file = fitting
    assert misfits(model.model_copy(update={"name": "m-simulated"}), pool, file) == (
        "the costs are of model 'llama-3.1-8b-simulated', not of 'm-simulated': their times are simulated all the same",
    )


def test_scheduling_is_asynchronous_as_the_engine_resolves_it(fitting: tuple[Model, Pool, CostFile]) -> None:
    model, pool, file = fitting
    on_gpu, pool = pool, pool.model_copy(update={"accelerator": "cpu"})
    measured = file.model_copy(update={"basis": "measured"})
    off = with_settings(model, extra={"async_scheduling": False})
    by_ngrams = with_settings(model, speculative=Speculative(method="ngram"))
    by_draft = with_settings(model, speculative=Speculative(method="eagle", model="draft"))
    for changed, its_pool, its_file, expected in (
        (model, pool, file, True),  # the costs are of a GPU
        (model, pool, measured, False),
        (model, on_gpu, measured, True),
        (off, on_gpu, measured, False),
        (with_settings(model, extra={"async_scheduling": True}), pool, measured, False),
        (by_ngrams, on_gpu, measured, False),
        (by_draft, on_gpu, measured, True),
        (model.model_copy(update={"task": "embed"}), on_gpu, measured, False),
    ):
        assert limits_for(changed, its_pool, its_file).async_scheduling is expected


def test_a_measured_file_remembers_how_its_engine_scheduled() -> None:
    model = CostModel(line(0.004, 2e-5), line(0.0, 1e-5), plain_attention(3e-8, 1e-10))
    for known in (True, False):
        limits = EngineModelLimits(8, 256, 4_000, async_scheduling=known)
        assert cost_file("m", "a machine", "measured", limits, model).limits() == limits


def test_a_step_takes_time() -> None:
    model = CostModel(line(0.0, 0.0), line(0.0, 1e-5), plain_attention(3e-8, 1e-10))
    with pytest.raises(ValueError, match="dense = 0 for a step of one token: allowed: above 0"):
        cost_file("m", "a machine", "measured", EngineModelLimits(8, 256, 4_000), model)


def test_speculation_is_what_the_spec_asks_for_as_far_as_its_method_was_measured(
    fitting: tuple[Model, Pool, CostFile],
) -> None:
    model, pool, file = fitting
    draft = SpeculationCosts(method="eagle", acceptance=(0.8, 0.6), draft=Curve(at=(0.0,), seconds=(0.002,)))
    measured = file.model_copy(update={"speculation": draft})
    by_draft = with_settings(model, speculative=Speculative(method="eagle", model="d", num_speculative_tokens=1))
    assert limits_for(by_draft, pool, measured).speculation == Speculation((0.8,), 1)
    assert limits_for(by_draft, pool, file).speculation is None
    assert limits_for(with_settings(model, speculative=Speculative(method="ngram")), pool, measured).speculation is None
    assert limits_for(model, pool, measured).speculation is None
    longer = with_settings(model, speculative=Speculative(method="eagle", model="d", num_speculative_tokens=5))
    assert limits_for(longer, pool, measured).speculation == Speculation((0.8, 0.6), 2)
    assert "acceptance is known of 2 tokens" in misfits(longer, pool, measured)[0]
    assert measured.cost_model().draft(4) == 0.002
    assert UnmodelledKind.SPECULATION in [one.kind for one in unmodelled(by_draft, file)]
    assert UnmodelledKind.SPECULATION not in [one.kind for one in unmodelled(by_draft, measured)]


def test_data_parallel_ranks_are_one_engine_that_holds_what_all_hold(fitting: tuple[Model, Pool, CostFile]) -> None:
    model, pool, file = fitting
    ranks = file.model_copy(update={"engine": file.engine.model_copy(update={"data_ranks": 2})})
    both = with_settings(model, data_parallel_size=2)
    one, two = limits_for(model, pool, file), limits_for(both, pool, ranks)
    held = [(each.sequences, each.step_tokens, each.kv_tokens) for each in (one, two)]
    assert held[1] == tuple(2 * each for each in held[0])
    assert two.long_prefill_tokens == one.step_tokens, "a prompt is computed by one of them"
    assert not misfits(both, pool, ranks)
    assert "data_parallel_size = 2: the costs are of 1 data-parallel rank" in " ".join(misfits(both, pool, file))
