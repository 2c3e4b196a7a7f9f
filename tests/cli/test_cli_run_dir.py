"""The run directory, and taking down what holds it."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cli.gateway import base_url, known_secret
from cli.private_ray import end_processes, processes_of
from cli.run_dir import RunDir, State, known_clusters
from tests.cell_store import keep_gateways
from tests.commands import ran
from tests.http_server import Handler, listening

OBEDIENT = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)

SLOW = STUBBORN.replace("signal.SIG_IGN", "lambda *_: (time.sleep(1), print('ended'), exit())")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYLANE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def temp_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "raylane-ray"
    folder.mkdir()
    return folder


def state_of(pid: int, temp_dir: Path, name: str = "x") -> State:
    return State(name, pid, psutil.Process(pid).create_time(), "http://127.0.0.1:1", str(temp_dir), ready=True)


def written(state: State) -> RunDir:
    run_dir = RunDir(state.name)
    run_dir.create()
    run_dir.write_state(state)
    return run_dir


@pytest.fixture
def process(temp_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a log in the temporary folder, as Ray's have."""
    with (temp_dir / "log").open("w") as log:
        child = subprocess.Popen([sys.executable, "-c", OBEDIENT], stdout=log)
    yield child
    child.kill()
    child.wait()


def test_state_comes_back(temp_dir: Path) -> None:
    state = state_of(os.getpid(), temp_dir)
    assert written(state).state() == state
    assert state.alive()
    assert known_clusters() == [state]
    RunDir("x").clear_state()
    RunDir("x").clear_state()
    assert RunDir("x").state() is None


def test_a_process_id_alone_proves_nothing(temp_dir: Path) -> None:
    good = state_of(os.getpid(), temp_dir)
    other = State(good.name, good.pid, good.pid_started - 100, good.url, good.ray_temp_dir, good.ready)
    assert not other.alive()
    written(other)
    assert known_clusters() == []
    assert known_clusters(dead_too=True) == [other]


def test_a_zombie_is_not_alive(temp_dir: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    state = state_of(child.pid, temp_dir)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not state.alive()
    child.wait()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "x"}', '{"unknown": 1}'])
def test_a_broken_state_is_none(home: Path, content: str) -> None:
    RunDir("x").create()
    (home / "x" / "state.json").write_text(content)
    assert RunDir("x").state() is None
    assert known_clusters(dead_too=True) == []


def test_secrets_are_for_their_owner(home: Path) -> None:
    run_dir = RunDir("x")
    run_dir.create()
    first = run_dir.new_secret("secret")
    second = run_dir.new_secret("secret")
    assert first != second
    assert len(second) == 64
    assert (home / "x" / "secret").read_text() == second
    assert stat.S_IMODE((home / "x" / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "x").stat().st_mode) == 0o700


def test_a_name_is_held_once() -> None:
    run_dir = RunDir("x")
    run_dir.create()
    with run_dir.lock() as mine:
        assert mine
        with RunDir("x").lock() as theirs:
            assert not theirs
    with run_dir.lock() as again:
        assert again


def test_down_without_a_cluster() -> None:
    for arguments in (["down"], ["down", "x"]):
        assert "is up on this machine" in ran(*arguments, code=1).stderr


def test_down_of_several_wants_a_name(temp_dir: Path) -> None:
    for name in ("one", "two"):
        written(state_of(os.getpid(), temp_dir, name))
    assert "allowed: raylane down one | two" in ran("down", code=2).stderr


def test_down_asks_and_waits(process: subprocess.Popen[str], temp_dir: Path) -> None:
    written(state_of(process.pid, temp_dir))
    assert ran("down", "x").stdout == "Cluster 'x' is down.\n"
    process.wait(5)


def test_down_waits_for_as_long_as_gateways_may_take(temp_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.down._PATIENCE_S", 0.1)
    with subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        written(replace(state_of(child.pid, temp_dir), stop_s=30.0))
        ran("down", "x")
        assert child.stdout.read() == "ended\n"


@pytest.mark.whole
def test_down_kills_what_does_not_heed(temp_dir: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        run_dir = written(state_of(child.pid, temp_dir))
        start = time.monotonic()
        ran("down", "x", "--timeout", "1")
        assert time.monotonic() - start < 10
        child.wait(5)
    assert run_dir.state() is None
    assert not temp_dir.exists()


@pytest.mark.whole
def test_down_cleans_up_after_a_killed_one(process: subprocess.Popen[str], temp_dir: Path) -> None:
    """Its processes hang somewhere else now; each has a log open in Ray's folder."""
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        state = state_of(dead.pid, temp_dir)
        dead.wait()
    run_dir = written(state)
    segment = Path(f"/dev/shm/raylane-test-{os.getpid()}")
    segment.write_text("x")
    (run_dir.path / "shared_memory").write_text(f"{segment}\n/etc/hostname\n/dev/shm/gone")
    assert "its leftovers are removed" in ran("down").stdout
    process.wait(5)
    assert not temp_dir.exists()
    assert not segment.exists()
    assert Path("/etc/hostname").exists()
    assert run_dir.state() is None


def test_processes_are_found_by_their_logs(process: subprocess.Popen[str], temp_dir: Path) -> None:
    assert [found.pid for found in processes_of(str(temp_dir))] == [process.pid]
    assert processes_of(str(temp_dir)[:-1]) == []
    end_processes(processes_of(str(temp_dir)), patience_s=0.1)
    process.wait(5)


@pytest.mark.timeout(30)
def test_a_zombie_that_nobody_buries_is_not_waited_for() -> None:
    program = (
        "import subprocess, sys; child = subprocess.Popen(['true']); print(child.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        end_processes([psutil.Process(int(parent.stdout.readline()))], patience_s=60)
        parent.kill()


def test_a_cell_that_no_process_holds_is_up_until_it_is_taken_down(home: Path) -> None:
    state = State("x", 0, 0.0, "", "", ready=True, address="10.0.0.1:6379")
    run_dir = written(state)
    assert known_clusters() == [state]
    assert run_dir.urls() == []
    keep_gateways(home / "x", {"a": "http://10.0.0.2:1", "b": "http://10.0.0.3:1"})
    assert run_dir.urls() == ["http://10.0.0.2:1", "http://10.0.0.3:1"]
    run_dir.clear_state()
    assert run_dir.urls() == []


def test_commands_ask_a_gateway_of_the_cell_that_answers(home: Path) -> None:
    run_dir = written(State("x", 0, 0.0, "", "", ready=True, address="10.0.0.1:6379"))
    secret = run_dir.new_secret("secret")
    with listening(_Healthy) as url:
        keep_gateways(home / "x", {"dead": "http://127.0.0.1:1", "alive": url, "last": "http://127.0.0.1:2"})
        assert base_url(None) == url
    assert known_secret(url) == secret
    assert known_secret("http://10.0.0.9:1") is None


def test_down_says_that_ray_does_not_answer(home: Path) -> None:
    written(State("x", 0, 0.0, "", "", ready=True, address="127.0.0.1:1"))
    assert "Ray at 127.0.0.1:1 does not answer" in ran("down", code=1).stderr
    assert RunDir("x").state() is not None


class _Healthy(Handler):
    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" else 404, b"")
