"""Plays one case with the law of whatever checkout stands first on PYTHONPATH, by its defaults: a pickled case on standard input, JSON on the output.

It imports nothing of `benchmarks`, so that an older checkout plays what a newer one has drawn.
"""

import gc
import json
import pickle
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from autoscaling.laws.registry import make_law
from planning.gauntlet.run import outcome_of, score_of

WITHIN_S = 600.0


def played(play: Any, target: float, plant: Any) -> dict[str, Any]:
    """The score, the changes of the number, and how they follow each other."""
    law = make_law("backlog", {}, plant)
    out = outcome_of(play, law, target)
    changes = [(one.at_s, one.applied, one.requested, one.reason) for one in out.scalings if one.changes]
    steps = [(at_s, after - before) for at_s, before, after, _ in changes]
    apart = [b[0] - a[0] for a, b in pairwise(steps)]
    turns = sum(b[0] - a[0] < WITHIN_S and a[1] * b[1] < 0 for a, b in pairwise(steps))
    return {
        **asdict(replace(score_of(play, out, target), by_lane={})),
        "hours": play.until_s / 3_600,
        "turns": turns,
        "within": sum(gap < WITHIN_S for gap in apart),
        "least_apart_s": min(apart, default=None),
        "changed": changes,
    }


if __name__ == "__main__":
    gc.disable()
    print(json.dumps(played(*pickle.load(sys.stdin.buffer))))
