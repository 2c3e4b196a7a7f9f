"""The replica's side of a start: its own phases, what the engine's processes write, and what the directory hears."""

import os
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engine import start_clock
from deployments.engine.start_clock import StartClock, StartReporter, _announce_worker, announced, process_age_s
from deployments.starts.phases import Phase
from deployments.starts.start import StartReport
from tests.clock import Clock


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartClock:
    """A start whose engine's processes write into `tmp_path`."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start = StartClock()
    start.folder = tmp_path
    return start


def test_the_age_of_the_process_is_that_of_the_kernel() -> None:
    before = process_age_s()
    time.sleep(0.05)
    assert 0.03 < process_age_s() - before < 1.0
    assert before > 0.05, "pytest takes longer to start"


def test_a_start_is_divided_from_its_process_on() -> None:
    clock = Clock()
    start = StartClock(2.0, clock)
    clock.now += 1.0
    start.enter(Phase.FETCH)
    clock.now += 5.0
    assert start.measured()[:2] == (Phase.FETCH, 5.0)
    start.enter(Phase.ENVIRONMENT)
    clock.now += 1.0
    phase, in_phase_s, seconds = start.measured()
    assert (phase, in_phase_s) == (Phase.ENVIRONMENT, 1.0)
    assert (seconds[Phase.ENVIRONMENT], seconds[Phase.FETCH]) == (4.0, 5.0)
    report = start.report("r", "m", "n")
    assert report.elapsed_s == 9.0


def test_a_phase_with_nothing_to_do_took_nothing() -> None:
    clock = Clock()
    start = StartClock(0.0, clock)
    start.enter(Phase.FETCH)
    clock.now += 0.2
    start.retract()
    start.enter(Phase.ENVIRONMENT)
    seconds = start.measured()[2]
    assert (seconds[Phase.FETCH], seconds[Phase.ENVIRONMENT]) == (0.0, pytest.approx(0.2))


class Worker:
    """As vLLM's executors use one."""

    def __init__(self, compiles_s: float) -> None:
        self.vllm_config = SimpleNamespace(
            compilation_config=SimpleNamespace(compilation_time=0.0, encoder_compilation_time=0.0)
        )
        self._compiles_s = compiles_s

    def load_model(self) -> str:
        self.model_runner = SimpleNamespace(capture_model=lambda: time.sleep(0.03))
        time.sleep(0.05)
        return "loaded"

    def determine_available_memory(self) -> int:
        self.vllm_config.compilation_config.compilation_time = self._compiles_s
        time.sleep(0.1)
        return 7

    def compile_or_warm_up_model(self) -> None:
        self.model_runner.capture_model()


def test_what_a_worker_of_vllm_does_is_read_by_its_replica(start: StartClock) -> None:
    """Its own figure of the compilation counts, since nothing else was seen of it."""
    worker: Any = Worker(compiles_s=0.08)
    _announce_worker(worker)
    assert worker.load_model() == "loaded"
    assert worker.determine_available_memory() == 7
    worker.compile_or_warm_up_model()
    phase, _, seconds = start.measured()
    assert phase is Phase.WARM_UP
    assert 0.05 <= seconds[Phase.LOAD] < 0.1
    assert seconds[Phase.COMPILE] == pytest.approx(0.08)
    assert 0.03 <= seconds[Phase.GRAPHS] < 0.08
    assert seconds[Phase.WARM_UP] >= 0.015
    with announced(Phase.COMPILE):
        assert start.measured()[0] is Phase.COMPILE
    assert start.measured()[0] is Phase.WARM_UP


def test_a_file_that_is_being_written_is_read_as_far_as_it_goes(start: StartClock, tmp_path: Path) -> None:
    now = time.monotonic()
    (tmp_path / f"start-{os.getpid()}.jsonl").write_text(f'["load", {now}, true]\n["lo')
    assert start.measured()[0] is Phase.LOAD


def test_a_torn_line_takes_no_other_with_it(start: StartClock, tmp_path: Path) -> None:
    """A disk was full for a moment."""
    with announced(Phase.LOAD):
        with next(tmp_path.glob("start-*.jsonl")).open("a") as file:
            file.write('["comp')
        time.sleep(0.05)
    with announced(Phase.COMPILE):
        phase, _, seconds = start.measured()
        assert phase is Phase.COMPILE
        assert 0.05 <= seconds[Phase.LOAD] < 0.2


@pytest.mark.parametrize(
    "line", ["", "[]", "7", '["lunch", 1.0, true]', '["load", null, true]', b"\xff".decode("latin-1")]
)
def test_what_is_no_line_of_a_start_is_left_out(start: StartClock, tmp_path: Path, line: str) -> None:
    now = time.monotonic()
    text = f'{line}\n["load", {now}, true]\n'
    (tmp_path / f"start-{os.getpid()}.jsonl").write_text(text, encoding="latin-1")
    assert start.measured()[0] is Phase.LOAD


def test_the_directory_hears_of_each_phase_and_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_clock, "_TELL_EVERY_S", 0.05)
    monkeypatch.setattr(start_clock, "_LOOK_EVERY_S", 0.01)
    start, heard, enough = StartClock(), list[StartReport](), threading.Event()

    def tell(report: StartReport) -> None:
        heard.append(report)
        if [one.phase for one in heard].count(Phase.LOAD) >= 3:
            enough.set()

    with StartReporter(lambda: start.report("r", "m", "n"), tell):
        assert heard[0].phase is Phase.ENVIRONMENT
        start.enter(Phase.LOAD)
        assert enough.wait(5)
    count = len(heard)
    time.sleep(0.1)
    assert len(heard) == count
