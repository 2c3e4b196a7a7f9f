"""`benchmarks.policies` behind the recorded words: this module alone knows its names."""

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.policies.rivals import make_policy
from benchmarks.policies.run import known_rate, outcome_of, replica_profile_of, scored
from benchmarks.policies.scenarios import SCENARIOS
from benchmarks.policies.scoring import Score
from tests.recorded.scaling_adapter import recorded_word

KNOWN_RATE_FACTOR = 1.25
_NEW_NAMES = {"silent": "unresponsive"}
"""Scenarios that were renamed after they were recorded."""


def figures_of(scenario: str, number: int, policy: str, traces: Path | None) -> dict[str, Any]:
    """What a policy with its defaults does in a held-out run of a scenario.

    `known_rate`: the baseline that knows the rate, without a search.
    """
    run = SCENARIOS[_NEW_NAMES.get(scenario, scenario)].run(number, traces)
    if policy == "known_rate":
        return _plain(scored(run, known_rate(run, KNOWN_RATE_FACTOR)))
    out = outcome_of(run, make_policy(policy, {}, replica_profile_of(run)))
    decisions = [[one.at_s, one.applied, one.requested, recorded_word(one.reason)] for one in out.scalings]
    columns = (out.arrived_s, out.placed_s, out.first_s, out.finished_s, out.expired_s)
    return {
        **_plain(scored(run, out)),
        "decisions": len(decisions),
        "decisions_sha256": _digest(repr(decisions).encode()),
        "requests_sha256": _digest(*(np.ascontiguousarray(column, dtype="<f8").tobytes() for column in columns)),
    }


def _plain(score: Score) -> dict[str, Any]:
    same = ("requests", "attainment", "by_lane", "replica_hours", "usd", "mean_replicas", "changes", "flaps")
    same += ("recovery_s", "rejected", "expired", "failed")
    p99_s = None if math.isnan(score.ttft_p99_s) else score.ttft_p99_s
    return {name: getattr(score, name) for name in same} | {"ttft_p99_s": p99_s}


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]
