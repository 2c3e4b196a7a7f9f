"""What a replica shows of its GPUs, with a stand-in for the driver's library: the tests' machines have no GPU."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from deployments.engine import gpus
from deployments.engine.gpus import Gpus
from deployments.telemetry.exposition import Exposition

USE, MEMORY = "raylane_engine_gpu_utilization_ratio", "raylane_engine_gpu_memory_used_bytes"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Of a machine with two GPUs, the second one with a UUID."""
    library = ModuleType("pynvml")
    library.nvmlInit = lambda: None  # type: ignore[attr-defined]
    library.nvmlDeviceGetCount = lambda: 2  # type: ignore[attr-defined]
    library.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    library.nvmlDeviceGetHandleByUUID = {"GPU-b": 1}.__getitem__  # type: ignore[attr-defined]
    library.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=30 + handle)  # type: ignore[attr-defined]
    library.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(used=1_000 + handle)  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.third_party"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.third_party.pynvml", library)
    monkeypatch.setattr(sys.modules["vllm.third_party"], "pynvml", library, raising=False)
    monkeypatch.setattr(gpus, "SAMPLE_S", 0.01)
    return library


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {"0": (0.3, 1_000), "1": (0.31, 1_001)}),
        ("1", {"1": (0.31, 1_001)}),
        ("GPU-b", {"GPU-b": (0.31, 1_001)}),
        ("", {}),
    ],
)
async def test_the_gpus_that_the_process_was_given(
    driver: ModuleType, monkeypatch: pytest.MonkeyPatch, given: str | None, expected: dict[str, tuple[float, int]]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    watched, registry = Gpus(), CollectorRegistry()
    registry.register(Exposition(watched.samples))
    watched.look()
    found = {
        name: (registry.get_sample_value(USE, {"gpu": name}), registry.get_sample_value(MEMORY, {"gpu": name}))
        for name in ("0", "1", "GPU-b")
    }
    assert {name: pair for name, pair in found.items() if pair != (None, None)} == expected


async def test_a_driver_that_fails_later_ends_it(driver: ModuleType) -> None:
    def fails(handle: int) -> None:
        raise RuntimeError("the GPU is lost")

    watched, registry = Gpus(), CollectorRegistry()
    registry.register(Exposition(watched.samples))
    watched.look()
    driver.nvmlDeviceGetMemoryInfo = fails  # type: ignore[attr-defined]
    await watched.run()
    assert registry.get_sample_value(USE, {"gpu": "0"}) is None


@pytest.mark.whole
async def test_nothing_is_shown_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.third_party.pynvml", None)
    watched = Gpus()
    await watched.run()
    assert list(watched.samples()) == []
