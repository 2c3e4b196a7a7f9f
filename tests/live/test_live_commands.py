"""`raylane up --detach`, `doctor` beside a running cluster, and `down`, as a user types them."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from tests.live.cluster import ROOT, START_S, can_bind, environment_in, free_port, local_spec, shared_memory_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]


def test_up_in_the_background_and_down(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("detached")
    port = free_port()
    spec = local_spec(1, kv_cache_memory_bytes=64 << 20)
    (folder / "spec.yaml").write_text(yaml.safe_dump({**spec, "name": "detached"}))
    environment = environment_in(folder)

    def raylane(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cli.main", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=START_S)

    up = raylane("up", folder / "spec.yaml", "--port", port, "--detach")
    assert (up.returncode, "Ready" in up.stdout) == (0, True), up.stdout + up.stderr
    try:
        pid = int(up.stdout.rpartition("(process ")[2].partition(")")[0])
        family = {psutil.Process(pid), *psutil.Process(pid).children(recursive=True)}
        shared = shared_memory_of(family)
        assert requests.get(f"http://127.0.0.1:{port}/ready?model=*", timeout=10).status_code == 200
        assert "1/1" in raylane("status").stdout
        again = raylane("up", folder / "spec.yaml", "--port", free_port())
        assert (again.returncode, "is already up" in again.stderr) == (1, True)
        doctor = raylane("doctor", folder / "spec.yaml")
        assert "BAD" not in doctor.stdout, doctor.stdout
        assert "torch" in doctor.stdout
        body = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 1_500, "ignore_eos": True, "stream": True}
        stream = requests.post(
            f"http://127.0.0.1:{port}/v1/completions", json=body, stream=True, timeout=60
        ).iter_content(64)
        next(stream)
    finally:
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(lambda: b"".join(stream))
            down = raylane("down")
    assert rest.result().endswith(b"data: [DONE]\n\n")  # what runs may end
    assert (down.returncode, "is down" in down.stdout) == (0, True), down.stderr
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    assert can_bind(port)
    assert not [name for name in shared if Path(name).exists()]
    assert raylane("status").returncode == 1
    assert raylane("down").returncode == 1


def test_a_start_that_fails_says_why(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A model's folder that vLLM cannot load: the cause in one line, the whole story in a file, and nothing left."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "llama"}')
    reported = _failing(folder, {"source": str(folder / "model")})
    assert "model demo cannot start (phase environment; 3 attempts): " in reported
    assert "NoSuchModel" in (folder / "home" / "failing" / "logs" / "failed-start-demo.log").read_text()


def test_an_engine_core_that_fails_says_its_own_cause(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Too small a KV cache is seen in the core's process only."""
    reported = _failing(
        tmp_path_factory.mktemp("failing"),
        {"settings": {"max_model_len": 8192, "enforce_eager": True, "kv_cache_memory_bytes": 1 << 20}},
    )
    assert "model demo cannot start (phase warm_up; 3 attempts): RuntimeError: " in reported
    assert "the engine's core did not start: ValueError: " in reported
    assert "KV cache" in reported


def _failing(folder: Path, model: dict[str, Any]) -> str:
    """What `raylane up` tells when that model cannot start; nothing of it is left."""
    spec = local_spec(1)
    spec["models"][0] |= model
    (folder / "spec.yaml").write_text(yaml.safe_dump({**spec, "name": "failing"}))
    environment = environment_in(folder)
    command = [sys.executable, "-m", "cli.main", "up", str(folder / "spec.yaml"), "--port", str(free_port())]
    up = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=START_S)
    assert up.returncode == 1
    assert "hint: raylane doctor" in up.stderr
    assert not (folder / "home" / "failing" / "state.json").exists()
    mine = str(folder / "home")
    assert not [process for process in psutil.process_iter() if mine in " ".join(_words(process))]
    return up.stderr


def _words(process: psutil.Process) -> list[str]:
    try:
        return [*process.cmdline(), *process.environ().values()]
    except psutil.Error:
        return []
