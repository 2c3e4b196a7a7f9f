"""The watchdog: it barks at a dead or stuck engine, and at nothing else."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.engine.watchdog import EngineVerdict, Watchdog, root_cause

STALL_S = 5.0
COMPILE_S = 60.0
ticks = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=60)


def test_a_dead_engine_is_dead_at_once_though_nothing_waits() -> None:
    assert Watchdog(STALL_S, COMPILE_S).check(now=0.0, unfinished=0, last_step=0.0, dead=True) is EngineVerdict.DEAD


def test_an_hour_of_idling_is_no_stall() -> None:
    watchdog = Watchdog(STALL_S, COMPILE_S)
    assert watchdog.check(0.0, 0, 0.0, dead=False) is EngineVerdict.HEALTHY
    for now in (3600.0, 3600.5, 3601.0, 3604.9):
        assert watchdog.check(now, 1, 0.0, dead=False) is EngineVerdict.HEALTHY


def test_time_in_which_the_watchdog_did_not_run_does_not_count() -> None:
    watchdog = Watchdog(STALL_S, COMPILE_S)
    for now in (0.0, 1.0, 60.0):
        assert watchdog.check(now, 1, 0.0, dead=False) is EngineVerdict.HEALTHY


@given(ticks)
def test_work_without_a_step_stalls_after_the_limit_and_not_before(gaps: list[float]) -> None:
    watchdog = Watchdog(STALL_S, COMPILE_S)
    watchdog.check(0.0, 1, 0.0, dead=False)
    for now in accumulate(gaps):
        verdict = watchdog.check(now, 1, 0.0, dead=False)
        assert (
            verdict is (EngineVerdict.STALLED if now > STALL_S else EngineVerdict.HEALTHY) or abs(now - STALL_S) < 1e-6
        )


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(0, 3), st.booleans()), max_size=200))
def test_an_engine_that_steps_in_time_is_never_called_stuck(history: list[tuple[float, int, bool]]) -> None:
    watchdog = Watchdog(STALL_S, COMPILE_S)
    now = last_step = owing_since = 0.0
    for gap, unfinished, steps in history:
        now += gap
        # A step at the latest when the limit nears; none while nothing is owed.
        if steps or now - max(owing_since, last_step) > STALL_S - 1.0:
            last_step = now
        if unfinished == 0:
            owing_since = now
        assert watchdog.check(now, unfinished, last_step, dead=False) is EngineVerdict.HEALTHY


@given(ticks)
def test_work_that_comes_and_goes_counts_anew(gaps: list[float]) -> None:
    watchdog = Watchdog(STALL_S, COMPILE_S)
    for number, now in enumerate(accumulate(gaps)):
        assert watchdog.check(now, number % 2, 0.0, dead=False) is EngineVerdict.HEALTHY


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.booleans()), min_size=1, max_size=150))
def test_time_in_a_compiler_does_not_count_up_to_its_bound(history: list[tuple[float, bool]]) -> None:
    watchdog = Watchdog(STALL_S, COMPILE_S)
    now = owed = compiled = 0.0
    watchdog.check(now, 1, 0.0, dead=False)
    for gap, compiling in history:
        now += gap
        if compiling and compiled < COMPILE_S:
            compiled += gap
        else:
            owed += gap
        verdict = watchdog.check(now, 1, 0.0, dead=False, compiling=compiling)
        assert (
            verdict is (EngineVerdict.STALLED if owed > STALL_S else EngineVerdict.HEALTHY)
            or abs(owed - STALL_S) < 1e-6
        )


def test_a_compiler_that_never_ends_is_a_stall_after_all() -> None:
    watchdog = Watchdog(STALL_S, COMPILE_S)
    verdicts = [
        watchdog.check(float(now), 1, 0.0, dead=False, compiling=True) for now in range(int(COMPILE_S + STALL_S) + 3)
    ]
    assert verdicts[int(COMPILE_S + STALL_S)] is EngineVerdict.HEALTHY
    assert verdicts[-1] is EngineVerdict.STALLED


def test_it_asks_for_compilers_only_when_a_step_is_overdue() -> None:
    watchdog = Watchdog(STALL_S, COMPILE_S)
    asked = []
    for number in range(40):
        asked.append(watchdog.is_suspicious)
        watchdog.check(number * 0.1, 1, 0.0, dead=False)
    assert not any(asked[:11])
    assert all(asked[13:])


LOG = """\
INFO 11-21 16:51:20 [utils.py:233] non-default args: {}
(EngineCore pid=123) INFO 11-21 16:51:31 [core.py:105] Initializing a V1 LLM engine
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099] EngineCore failed to start.
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099] Traceback (most recent call last):
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099]   File "kv_cache_utils.py", line 1, in _check_enough_kv_cache_memory
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099]     raise ValueError(
(EngineCore pid=123) ERROR 11-21 16:51:40 [core.py:1099] ValueError: To serve at least one request with the models's max seq len, more is needed.
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""

LATER = "(EngineCore pid=124) ERROR [core.py:1] torch.OutOfMemoryError: no room\n"
NOTHING = "RuntimeError: Engine core initialization failed.\n(EngineCore pid=1) INFO all is well\n"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (LOG, "ValueError: To serve at least one request with the models's max seq len, more is needed."),
        (LOG + LATER, "torch.OutOfMemoryError: no room"),
        (NOTHING, None),
    ],
    ids=["the core's own error", "the last of several", "none"],
)
def test_the_cause_is_what_the_core_said_last(log: str, cause: str | None) -> None:
    assert root_cause(log) == cause
