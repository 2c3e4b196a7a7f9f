"""The environment of a replica's process."""

import logging
import logging.config
import os
import tempfile
import weakref
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path

import pytest

from cluster.spec import EngineSettings, Model, Pool
from deployments.engine.environment import (
    INDUCTOR_CACHE,
    forget_foreign_variables,
    inductor_cache,
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


def test_a_hub_name_may_be_fetched() -> None:
    assert "HF_HUB_OFFLINE" not in replica_environment(model("org/m"), CPU)


@pytest.mark.parametrize(("ranks", "threads", "workers"), [(1, "4", "0"), (2, "2", "1"), (8, "1", "1")])
def test_the_ranks_share_the_booked_cores(ranks: int, threads: str, workers: str) -> None:
    variables = replica_environment(model("org/m", cpus=4, tensor_parallel_size=ranks), CPU)
    assert (variables["OMP_NUM_THREADS"], variables["VLLM_ENABLE_V1_MULTIPROCESSING"]) == (threads, workers)


def test_a_gpu_replica_keeps_vllms_threads() -> None:
    assert "OMP_NUM_THREADS" not in replica_environment(model("org/m"), Pool(name="gpu", accelerator="H100", gpus_per_node=8))


def test_what_the_node_has_set_for_others_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "somebody's")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    forget_foreign_variables()
    assert not {"VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE"} & set(os.environ)


def test_serves_log_stays_open_when_vllm_configures_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a controller that recovers asks for it: by the handler's file. `dictConfig` closes what `_handlerList` has, here nothing but ours."""
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


def test_a_replica_has_a_temporary_folder_and_shares_the_compilers_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv(INDUCTOR_CACHE, "")
    cache = inductor_cache()
    folders = []
    for _ in range(2):
        folders.append(own_temp_dir())
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == folders[-1]
        assert os.environ[INDUCTOR_CACHE] == inductor_cache() == cache
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert len({*folders, cache}) == 3
    assert {Path(folder).parent for folder in folders} == {Path(cache).parent} == {tmp_path}
