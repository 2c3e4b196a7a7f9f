"""A model of the spec as vLLM's arguments: the part that needs no vLLM."""

from pathlib import Path
from typing import Any

import pytest

from cluster.artifacts import ArtifactError
from cluster.spec import EngineSettings, LoraAdapter, Model
from deployments.engine.args import arguments, why_not_served


def model(task: str = "generate", adapters: tuple[LoraAdapter, ...] = (), **settings: Any) -> Model:
    return Model.model_validate(
        {
            "name": "m",
            "source": "org/m",
            "task": task,
            "settings": {"max_model_len": 4096, **settings},
            "adapters": [a.model_dump() for a in adapters],
        }
    )


def test_the_specs_names_become_vllms() -> None:
    values = arguments(model(max_num_seqs=7, chunked_prefill=False, prefix_caching=False, enforce_eager=True))
    assert values["model"] == "org/m"
    assert values["served_model_name"] == ["m"]
    assert values["max_num_seqs"] == 7
    assert values["enable_chunked_prefill"] is values["enable_prefix_caching"] is False
    assert values["enforce_eager"] is True


def test_a_tool_parser_turns_automatic_tool_choice_on() -> None:
    values = arguments(model(tool_call_parser="hermes"))
    assert (values["tool_call_parser"], values["enable_auto_tool_choice"]) == ("hermes", True)
    assert "enable_auto_tool_choice" not in arguments(model())


def test_speculative_decoding_passes_through(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    values = arguments(
        model(speculative={"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 4})
    )
    assert values["speculative_config"] == {
        "method": "draft_model",
        "model": str(tmp_path),
        "num_speculative_tokens": 4,
    }
    assert arguments(model(speculative={"method": "ngram"}))["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 3,
    }


def test_an_embedding_model_runs_as_a_pooler() -> None:
    values = arguments(model(task="embed"))
    assert (values["runner"], values["convert"]) == ("pooling", "embed")
    assert values["enable_prefix_caching"] is values["enable_chunked_prefill"] is None, "vLLM knows encoders"
    assert arguments(model(task="embed", prefix_caching=False))["enable_prefix_caching"] is False


def test_adapters_are_loaded_with_their_limits() -> None:
    values = arguments(model(adapters=(LoraAdapter(name="tuned", source="org/tuned"),), max_lora_rank=32))
    assert values["enable_lora"] is True
    assert values["max_lora_rank"] == 32
    assert values["lora_modules"] == [{"name": "tuned", "path": "org/tuned"}]


@pytest.mark.parametrize(("ranks", "executor"), [(1, None), (2, "mp"), (8, "mp")])
def test_several_ranks_run_in_the_replicas_own_processes(ranks: int, executor: str | None) -> None:
    assert arguments(model(tensor_parallel_size=ranks)).get("distributed_executor_backend") == executor
    assert arguments(model(pipeline_parallel_size=ranks)).get("distributed_executor_backend") == executor


def test_both_kinds_of_parallelism_reach_the_engine() -> None:
    values = arguments(model(tensor_parallel_size=2, pipeline_parallel_size=4))
    assert (values["tensor_parallel_size"], values["pipeline_parallel_size"]) == (2, 4)


def test_data_parallel_ranks_and_whole_experts_reach_the_engine_but_are_not_served() -> None:
    spread = model(data_parallel_size=2, enable_expert_parallel=True)
    values = arguments(spread)
    assert (values["data_parallel_size"], values["enable_expert_parallel"]) == (2, True)
    assert values["distributed_executor_backend"] == "mp"
    assert "settings.data_parallel_size = 2" in str(why_not_served(spread))
    assert why_not_served(model(enable_expert_parallel=True)) is None


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"config\.json"):
        arguments(Model(name="m", source=str(tmp_path), settings=EngineSettings(max_model_len=64)))
