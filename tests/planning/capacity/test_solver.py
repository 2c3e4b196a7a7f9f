"""HiGHS on programs, and what ends it."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

HARD = """
import random, signal, sys
from planning.capacity.program import Program
from planning.capacity.solver import solve
draw, program = random.Random(1), Program()
columns = [program.column(-draw.randint(1, 1000), 1.0, integer=True) for _ in range(300)]
for _ in range(80):
    program.row(0.0, 500.0, [(column, float(draw.randint(1, 100))) for column in columns])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("begins", flush=True)
solve(program, gap=0.0, limit_s=600.0)
"""
"""A program of which HiGHS proves no optimum within minutes."""


@pytest.mark.whole
def test_a_signal_ends_a_program_that_is_being_solved() -> None:
    with subprocess.Popen([sys.executable, "-c", HARD], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            running = psutil.Process(process.pid)
            while running.cpu_times().user < 2:  # HiGHS runs
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 143
        finally:
            process.kill()
