"""The environment of a replica's process."""

import logging
import logging.config
import os
import tempfile
import weakref
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path

import pytest

from cluster.spec import EngineSettings, LoraAdapter, Model, Pool, Speculative, Tracing
from deployments.engine.environment import (
    INDUCTOR_CACHE,
    TRACES_ENDPOINT,
    forget_foreign_variables,
    keep_compiled,
    keep_serve_log,
    own_temp_dir,
    replica_environment,
)

CPU = Pool(name="cpu")


def model(source: str, **settings: object) -> Model:
    return Model(name="m", source=source, settings=EngineSettings.model_validate({"max_model_len": 4096, **settings}))


def test_nothing_calls_home_and_nothing_leaves_the_machine() -> None:
    variables = replica_environment(model("org/m"), CPU)
    assert variables["VLLM_NO_USAGE_STATS"] == variables["DO_NOT_TRACK"] == "1"
    assert variables["VLLM_HOST_IP"] == "127.0.0.1"


def test_a_replica_is_traced_where_the_spec_says_and_samples_what_its_gateway_does() -> None:
    variables = replica_environment(model("org/m"), CPU, Tracing(endpoint="http://127.0.0.1:4318/v1/traces"))
    assert variables[TRACES_ENDPOINT] == "http://127.0.0.1:4318/v1/traces"
    assert variables["OTEL_TRACES_SAMPLER"] == "parentbased_always_off"
    assert not any("TRACES" in name for name in replica_environment(model("org/m"), CPU))


def test_a_hub_name_may_be_fetched() -> None:
    assert "HF_HUB_OFFLINE" not in replica_environment(model("org/m"), CPU)


@pytest.mark.parametrize(("ranks", "threads", "workers"), [(1, "4", "0"), (2, "2", "1"), (8, "1", "1")])
def test_the_ranks_share_the_booked_cores(ranks: int, threads: str, workers: str) -> None:
    variables = replica_environment(model("org/m", cpus=4, tensor_parallel_size=ranks), CPU)
    assert (variables["OMP_NUM_THREADS"], variables["VLLM_ENABLE_V1_MULTIPROCESSING"]) == (threads, workers)
    assert replica_environment(model("org/m", cpus=4, pipeline_parallel_size=ranks), CPU) == variables


def test_a_gpu_replica_keeps_vllms_threads() -> None:
    assert "OMP_NUM_THREADS" not in replica_environment(
        model("org/m"), Pool(name="gpu", accelerator="H100", gpus_per_node=8)
    )


def test_what_the_node_has_set_for_others_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "somebody's")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    forget_foreign_variables()
    assert not {"VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE"} & set(os.environ)


def test_serves_log_stays_open_when_vllm_configures_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a controller that recovers asks for it: by the handler's file. `dictConfig` closes what `_handlerList` has,
    here nothing but ours."""
    file = RotatingFileHandler(tmp_path / "replica.log")
    handler = MemoryHandler(1, target=file)
    serve = logging.getLogger("ray.serve")
    monkeypatch.setattr(serve, "handlers", [handler])
    monkeypatch.setattr(serve, "propagate", False)
    monkeypatch.setattr(logging, "_handlerList", [weakref.ref(file), weakref.ref(handler)])
    keep_serve_log()
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    serve.warning("after vLLM")
    assert handler.target is file
    assert (tmp_path / "replica.log").read_text() == "after vLLM\n"
    file.close()


def test_a_replica_has_a_temporary_folder_and_shares_the_compilers_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folders = []
    for _ in range(2):
        folders.append(own_temp_dir())
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == folders[-1]
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert len({*folders}) == 2
    assert {Path(folder).parent for folder in folders} == {tmp_path}


def test_what_is_compiled_is_kept_where_the_spec_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_CACHE_ROOT", INDUCTOR_CACHE):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_compiled("~/compiled")
    assert os.environ["VLLM_CACHE_ROOT"] == str(tmp_path / "compiled" / "vllm")
    assert os.environ[INDUCTOR_CACHE] == str(tmp_path / "compiled" / "inductor")
    assert (tmp_path / "compiled").stat().st_mode & 0o077 == 0
    keep_compiled(str(tmp_path / "elsewhere"))
    assert os.environ[INDUCTOR_CACHE] == str(tmp_path / "compiled" / "inductor"), "the node's environment wins"


def test_a_folder_that_cannot_be_made_fails_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(INDUCTOR_CACHE, "")
    (tmp_path / "file").touch()
    keep_compiled(str(tmp_path / "file" / "compiled"))
    assert os.environ[INDUCTOR_CACHE] == ""
    assert "every start compiles anew" in caplog.text


@pytest.mark.parametrize(
    ("source", "draft", "adapter", "offline"),
    [
        ("/not/here", "~/draft", "s3://bucket/adapter", True),
        ("demo", "demo-draft", "./adapter", True),
        ("/not/here", "org/draft", "/adapter", False),
        ("/not/here", "/draft", "org/adapter", False),
    ],
)
def test_the_hub_is_asked_where_one_source_is_its_own(source: str, draft: str, adapter: str, offline: bool) -> None:
    """Told by their form: the folders are on the nodes that use them."""
    one = model(source, speculative=Speculative(method="draft_model", model=draft)).model_copy(
        update={"adapters": (LoraAdapter(name="a", source=adapter),)}
    )
    assert ("HF_HUB_OFFLINE" in replica_environment(one, CPU)) is offline
