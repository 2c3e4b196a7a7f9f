"""What every scaling policy owes to those who ask it, whatever it decides. All policies of `registry.py`, and those of
others that `benchmarks.policies` compares with, are tested here, by their name.

To add a policy: write its file with its settings (a frozen dataclass that refuses what it cannot work with), a class
that fulfils `autoscaling/policies/policy.py:ScalingPolicy`, and an `ENTRY`; name the entry in `registry.py`. This suite
then tests it with its default settings: it needs no change here. What the policy decides is tested beside it, in
`tests/autoscaling/policies/`.

Most of it runs policies against a small fluid plant (`fluid.py`). The bounds are loose: they say what no policy may do,
not what a good one does.
"""

import math
import pickle
import random
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autoscaling.policies.policy import DesiredReplicas, PolicyReason, ScalingPolicy
from autoscaling.policies.registry import POLICIES
from autoscaling.policies.settings import defaults_in
from autoscaling.signals.signals import Signals
from benchmarks.policies.rivals import ALL_POLICIES, make_policy
from tests.autoscaling.policies.fluid import Fluid
from tests.autoscaling.policies.moments import REPLICA_PROFILE, moment

HOUR_S = 3_600.0
MAX_REVERSALS = 12
"""Of direction, in half an hour of steady load. A policy on waiting requests alone shrinks whatever does not queue, and
comes back."""

every_policy = pytest.mark.parametrize("name", list(ALL_POLICIES))
every_policy_that_scales = pytest.mark.parametrize("name", [name for name in ALL_POLICIES if name != "fixed"])


def new(name: str) -> ScalingPolicy:
    return make_policy(name, {}, REPLICA_PROFILE)


def asked(policy: ScalingPolicy, signals: Signals) -> DesiredReplicas:
    """The answer, which is a number that one can run, a reason, and quantities that a log can hold."""
    desired = policy.decide(signals)
    assert type(desired.replicas) is int
    assert desired.replicas >= 0
    assert isinstance(desired.policy_reason, PolicyReason)
    assert all(isinstance(value, float) and math.isfinite(value) for value in desired.terms.values())
    return desired


def day(seed: int, count: int = 60) -> list[Signals]:
    """Moments of a bad day: anything may be zero or huge, counters restart, hours are missing."""
    rng = random.Random(seed)
    at_s, epoch, arrived, ended = rng.uniform(0, 1e6), 1, 0, 0
    moments = []
    for _ in range(count):
        at_s += rng.choice([0.0, 0.5, 1.0, 5.0, 15.0, 60.0, 7_200.0])
        if rng.random() < 0.05:
            epoch, arrived, ended = epoch + 1, 0, 0
        arrived += rng.choice([0, 1, 30, 5_000])
        ended = min(arrived, ended + rng.choice([0, 1, 30, 5_000]))
        ready, starting, unresponsive, draining = (rng.choice([0, 0, 1, 3, maximum]) for maximum in (1_000, 40, 2, 5))
        moments.append(
            moment(
                at_s,
                ready=ready,
                starting=starting,
                unresponsive=unresponsive,
                draining=draining,
                applied=rng.choice([None, 0, 1, 7, 1_000]),
                waiting=rng.choice([0, 0, 1, 50, 10_000_000]),
                running=rng.choice([0, 1, 128]),
                kv_share=rng.choice([0.0, 0.3, 1.0]),
                queued_tokens=rng.choice([0, 2_000, 1_000_000]),
                arrived=arrived,
                prompt_tokens=800 * arrived,
                ended=ended,
                output_tokens=200 * ended,
                epoch=epoch,
            )
        )
    return moments


@every_policy
def test_it_is_known_by_its_name_and_says_how_often_it_is_to_be_asked(name: str) -> None:
    policy = new(name)
    assert policy.name == name
    assert 0 < policy.period_s <= 60


@pytest.mark.parametrize("name", list(POLICIES))
def test_its_settings_are_frozen_and_what_a_tuner_turns_are_settings_within_their_ranges(name: str) -> None:
    entry = POLICIES[name]
    kept = entry.settings()
    with pytest.raises((AttributeError, ValidationError), match=r"frozen|cannot assign"):
        setattr(kept, next(iter(defaults_in(entry.settings))), 1.0)
    assert hash(kept) == hash(entry.settings())
    assert entry.search
    for key, span in entry.search.items():
        default = getattr(kept, key)
        assert span.low < span.high
        assert span.low > 0 or not span.log
        assert default is None or span.low <= default <= span.high
        for value in (span.low, span.high):
            asked(make_policy(name, {key: int(value) if span.integer else value}, REPLICA_PROFILE), moment(ready=1))


@pytest.mark.whole
@every_policy
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000))
def test_whatever_comes_it_answers_and_a_policy_that_was_pickled_answers_the_same(name: str, seed: int) -> None:
    moments = day(seed)
    policy = new(name)
    cut = random.Random(seed).randrange(len(moments))
    before = [asked(policy, signals) for signals in moments[:cut]]
    again = pickle.loads(pickle.dumps(policy))
    rest, rest_again = ([asked(one, signals) for signals in moments[cut:]] for one in (policy, again))
    assert rest == rest_again
    another = new(name)
    assert [asked(another, signals) for signals in moments] == before + rest


@pytest.mark.whole
@every_policy
def test_it_reads_no_clock(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = day(seed=3)
    policy = new(name)
    reported = [asked(policy, signals) for signals in moments]  # imports what it imports

    def clock() -> float:
        raise AssertionError("a policy read the clock")

    for reader in ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns"):
        monkeypatch.setattr(time, reader, clock)
    policy = new(name)
    again = [asked(policy, signals) for signals in moments]
    monkeypatch.undo()
    assert again == reported


@every_policy_that_scales
def test_zero_replicas_and_nothing_to_do(name: str) -> None:
    policy = new(name)
    for step in range(100):
        assert asked(policy, moment(step * policy.period_s)).replicas <= 1


@pytest.mark.whole
@every_policy
def test_no_load_adds_nothing(name: str) -> None:
    """llm-d's autoscaling #380: up without any load."""
    policy, fluid = new(name), Fluid(lambda at: 0.0, replicas=3)
    applied = fluid.replicas
    for _, number in fluid.run_through(policy, HOUR_S):
        assert number <= applied
        applied = number


@pytest.mark.whole
@every_policy
def test_what_a_burst_left_behind_goes_away_again(name: str) -> None:
    policy, fluid = new(name), Fluid(lambda at: 50.0 if at < 300 else 0.2, replicas=2)
    fluid.run_through(policy, 2 * HOUR_S, maximum=100)
    quiet = fluid.replicas
    assert quiet <= 2
    assert all(number <= quiet for _, number in fluid.run_through(policy, 2.5 * HOUR_S, maximum=100))


@pytest.mark.whole
@every_policy
def test_steady_load_comes_to_rest(name: str) -> None:
    policy, fluid = new(name), Fluid(lambda at: 40.0, replicas=4)  # two thirds of what they serve
    fluid.run_through(policy, HOUR_S / 2)
    numbers = [fluid.replicas, *(number for _, number in fluid.run_through(policy, HOUR_S))]
    ups = [after > before for before, after in pairwise(numbers)]
    reversals = sum(one != other for one, other in pairwise(ups))
    assert reversals <= MAX_REVERSALS, numbers


@pytest.mark.whole
@every_policy_that_scales
def test_a_burst_makes_it_want_more(name: str) -> None:
    policy, fluid = new(name), Fluid(lambda at: 16.0 if at < HOUR_S / 2 else 240.0, replicas=2)
    fluid.run_through(policy, HOUR_S / 2)
    before = fluid.replicas
    changes = fluid.run_through(policy, HOUR_S / 2 + 300.0)
    assert changes
    assert max(number for _, number in changes) > before


@every_policy
def test_a_thousand_replicas_under_a_backlog_of_millions(name: str) -> None:
    policy = new(name)
    crowd = moment(
        ready=1_000, waiting=10_000_000, running=128, kv_share=1.0, arrived=20_000_000, prompt_tokens=1 << 40
    )
    for step in range(50):
        at_s = step * policy.period_s
        assert asked(policy, replace(crowd, at_s=at_s, unix_s=crowd.unix_s + at_s)).replicas >= 1


@pytest.mark.whole
def test_policies_are_listed_without_what_they_need_to_run() -> None:
    code = (
        "import sys, autoscaling.policies.registry; print([name for name in ('ray', 'vllm', 'numpy', 'fastapi') if "
        "name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
