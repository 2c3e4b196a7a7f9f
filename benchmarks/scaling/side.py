"""Runs one case with the policy of whatever checkout stands first on PYTHONPATH, by its defaults: a pickled case on
standard input, JSON on the output.

It imports nothing of `benchmarks`, so that an older checkout runs what a newer one has drawn.
"""

import gc
import json
import pickle
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from autoscaling.policies.registry import make_policy
from planning.gauntlet.run import outcome_of, score_of

WITHIN_S = 600.0


def outcome(run: Any, target: float, replica_profile: Any) -> dict[str, Any]:
    """The score, the changes of the number, and how they follow each other."""
    policy = make_policy("backlog", {}, replica_profile)
    out = outcome_of(run, policy, target)
    changes = [(one.at_s, one.applied, one.requested, one.reason) for one in out.scalings if one.changes]
    steps = [(at_s, after - before) for at_s, before, after, _ in changes]
    apart = [b[0] - a[0] for a, b in pairwise(steps)]
    turns = sum(b[0] - a[0] < WITHIN_S and a[1] * b[1] < 0 for a, b in pairwise(steps))
    return {
        **asdict(replace(score_of(run, out, target), by_lane={})),
        "hours": run.until_s / 3_600,
        "turns": turns,
        "within": sum(gap < WITHIN_S for gap in apart),
        "min_apart_s": min(apart, default=None),
        "changed": changes,
    }


if __name__ == "__main__":
    gc.disable()
    print(json.dumps(outcome(*pickle.load(sys.stdin.buffer))))
