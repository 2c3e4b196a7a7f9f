"""The pure parts of the serving benchmark: intervals, points, flags, specs."""

import asyncio
import io
import math
import statistics
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.harness import median_interval
from benchmarks.serving.contest import parse_points, requests_for
from benchmarks.serving.gateways import StreamClient, StreamCounts, render
from benchmarks.serving.sides import make_side, one_replica_spec, vllm_flags, write_spec
from benchmarks.serving.source import serve
from cli.private_cell import free_port
from cluster.spec import parse_spec


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_interval_holds_the_median_and_says_what_it_covers(values: list[float], coverage: float) -> None:
    estimate = median_interval(values, coverage)
    assert min(values) <= estimate.low <= estimate.median <= estimate.high <= max(values)
    assert estimate.median == statistics.median(values)
    widest = 1 - 2 * 0.5 ** len(values)
    assert estimate.coverage >= coverage or math.isclose(estimate.coverage, max(0.0, widest))


def test_five_rounds_give_their_range_at_94_percent() -> None:
    estimate = median_interval([0.97, 1.01, 0.99, 0.98, 1.0])
    assert (estimate.low, estimate.median, estimate.high, estimate.coverage) == (0.97, 0.99, 1.01, 0.9375)


def test_points_are_numbers_or_multiples_of_the_engines_slots() -> None:
    assert parse_points("8, 32,4x", 64) == (8, 32, 256)
    for bad in ("", "0", "8,", "x", "-1", "4y"):
        with pytest.raises(ValueError, match="allowed: a concurrency"):
            parse_points(bad, 64)


@given(st.integers(1, 512), st.floats(0.01, 1_000), st.floats(0.1, 60))
def test_a_round_is_whole_waves(concurrency: int, rate: float, round_s: float) -> None:
    requests = requests_for(concurrency, rate, round_s)
    assert requests % concurrency == 0
    assert requests >= 2 * concurrency
    assert requests / rate <= max(round_s + concurrency / rate, 2 * concurrency / rate) + 1e-6


def test_vllms_flags_say_what_the_settings_say() -> None:
    values = {
        "max_num_seqs": 64,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "served_model_name": ["a"],
        "speculative": {"k": 1},
    }
    expected = "--max-num-seqs 64 --enforce-eager --no-enable-prefix-caching --served-model-name a --speculative"
    assert vllm_flags(values) == [*expected.split(), '{"k": 1}']


def test_the_spec_has_one_replica_on_the_port_and_the_given_settings() -> None:
    spec = parse_spec(one_replica_spec(4_711, "./model", {"max_num_seqs": 4}))
    assert spec.gateway.port == 4_711
    assert spec.gateway.host == "127.0.0.1"
    model = spec.models[0]
    assert (model.source, model.replicas.count, model.settings.max_num_seqs) == ("./model", 1, 4)


def test_all_sides_start_with_the_engines_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    (tmp_path / "config.json").write_text("{}")
    spec = write_spec(tmp_path, one_replica_spec(free_port(), str(tmp_path)))
    environments = {
        name: make_side(name, spec, tmp_path).server._env
        for name in ("raylane", "bare", "serve-llm", "serve-llm-direct")
    }
    for name, env in environments.items():
        assert "VLLM_CPU_KVCACHE_SPACE" not in env
        assert "RAY_ADDRESS" not in env
        assert name == "raylane" or (env["OMP_NUM_THREADS"], env["VLLM_ENABLE_V1_MULTIPROCESSING"]) == ("1", "0")
    assert environments["serve-llm-direct"]["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert "RAY_SERVE_ENABLE_HA_PROXY" not in environments["serve-llm"]


def test_another_checkout_runs_its_own_code_under_another_name_and_port(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    spec = write_spec(tmp_path, one_replica_spec(free_port(), str(tmp_path)))
    side = make_side("checkout", spec, tmp_path, tmp_path / "before")
    moved = parse_spec((side.folder / "spec.yaml").read_text(encoding="utf-8"))
    assert moved.name != spec.name
    assert moved.gateway.port != spec.gateway.port
    assert side.url == f"http://127.0.0.1:{moved.gateway.port}"
    assert moved.models == spec.models
    there = tmp_path / "before"
    assert side.server._command == [
        "env",
        f"--chdir={there}",
        f"{there}/.venv/bin/raylane",
        "up",
        str(side.folder / "spec.yaml"),
    ]
    assert side.server._env["RAYLANE_HOME"] == str(side.folder / "home")


async def test_the_source_and_the_clients_of_the_gateways_benchmark_count_the_same() -> None:
    """Streams of five events follow each other on each connection, the first of one, two and five."""
    port, load = free_port(), StreamCounts()
    server = await serve(port)
    connect = asyncio.get_running_loop().create_connection
    clients = [partial(StreamClient, load, first, 5) for first in (1, 2, 5)]
    transports = [(await connect(client, "127.0.0.1", port))[0] for client in clients]
    async with asyncio.timeout(30):
        while load.ended < 9:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert load.begun == 3
    assert load.events - (1 + 2 + 5 + 6 * 5) <= 3 * 5  # of those that have begun since
    assert load.broken == 0
    load.over = True
    for transport in transports:
        transport.close()
    server.close()
    await server.wait_closed()


def test_the_table_of_gateways_has_cores_per_gpu() -> None:
    turns = [{"events_per_s": 1_000.0, "cores": 0.05, "broken": 0}] * 3
    idle = [{"events_per_s": 0.0, "cores": 0.01, "broken": 0}]
    console = Console(file=io.StringIO(), width=160)
    console.print(render({"sides": {"raylane": {"0": idle, "32": turns}}}, 2_000))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ["raylane", "0", "0", "1.0", "-", "-", "-", "-", "0"] in [line.split()[1::2] for line in text.splitlines()]
    assert "50.0-50.0" in text
    assert "20,000" in text
    assert "0.100" in text
