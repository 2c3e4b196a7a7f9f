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


NGRAMS = {"method": "ngram", "num_speculative_tokens": 3}
TUNED = LoraAdapter(name="tuned", source="org/tuned")
LOADED = {"enable_lora": True, "max_lora_rank": 32, "lora_modules": [{"name": "tuned", "path": "org/tuned"}]}
SPECS: dict[str, tuple[Model, dict[str, Any]]] = {
    "names": (model(max_num_seqs=7), {"model": "org/m", "served_model_name": ["m"], "max_num_seqs": 7}),
    "chunks": (model(chunked_prefill=False, max_model_len=2048), {"enable_chunked_prefill": False}),
    "prefixes": (model(prefix_caching=False), {"enable_prefix_caching": False}),
    "eager": (model(enforce_eager=True), {"enforce_eager": True}),
    "tools": (model(tool_call_parser="hermes"), {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}),
    "drafts of n-grams": (model(speculative={"method": "ngram"}), {"speculative_config": NGRAMS}),
    "embeddings": (model(task="embed"), {"runner": "pooling", "convert": "embed"}),
    "embeddings, where vLLM knows encoders": (
        model(task="embed"),
        {"enable_prefix_caching": None, "enable_chunked_prefill": None},
    ),
    "embeddings, as asked": (model(task="embed", prefix_caching=False), {"enable_prefix_caching": False}),
    "adapters": (model(adapters=(TUNED,), max_lora_rank=32), LOADED),
    "parallelism": (
        model(tensor_parallel_size=2, pipeline_parallel_size=4),
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 4},
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_what_the_spec_says_becomes_vllms_arguments(name: str) -> None:
    asked, expected = SPECS[name]
    values = arguments(asked)
    assert {key: values[key] for key in expected} == expected


def test_without_a_tool_parser_no_tool_is_chosen() -> None:
    assert "enable_auto_tool_choice" not in arguments(model())


def test_a_draft_model_passes_through(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    draft = {"method": "draft_model", "model": str(tmp_path), "num_speculative_tokens": 4}
    assert arguments(model(speculative=draft))["speculative_config"] == draft


@pytest.mark.parametrize(("ranks", "executor"), [(1, None), (2, "mp"), (8, "mp")])
def test_several_ranks_run_in_the_replicas_own_processes(ranks: int, executor: str | None) -> None:
    assert arguments(model(tensor_parallel_size=ranks)).get("distributed_executor_backend") == executor
    assert arguments(model(pipeline_parallel_size=ranks)).get("distributed_executor_backend") == executor


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
