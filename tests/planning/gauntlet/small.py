"""A run that simulates in a moment, and contests made up for tests."""

import numpy as np

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.results import Point, PolicyResult, Results, ScenarioResult
from planning.gauntlet.scenario import ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import CHATS, LoadStream, drawn
from planning.scoring import Score


def small_run(seed: int = 0, start_up_s: float = 20.0) -> ScenarioRun:
    """A quiet start, a busy middle, a quiet end: seven minutes."""
    knots = [(0, 0.5), (150, 0.5), (150, 2.2), (270, 2.2), (270, 0.5)]
    work, load = drawn(CHAT, [LoadStream(CHATS, knots)], 420.0, np.random.default_rng(seed))
    return ScenarioRun(CHAT, work, load, Bounds(1, 6), 1, 420.0, start_up_s=(start_up_s,))


def score_like(attainment: float, hours: float, flaps: int = 0) -> Score:
    """A score of which only these figures matter."""
    return Score(1_000, attainment, {"short": attainment}, hours, 2.5 * hours, 2 * hours, 4, flaps, 30.0, 0, 0, 0, 1.5)


def point_like(attainments: list[float], hours: list[float], **settings: float) -> Point:
    """A point of a frontier."""
    return Point(settings, tuple(score_like(a, h) for a, h in zip(attainments, hours, strict=True)))


def contest_like(policies: dict[str, list[Point]], scenario: str = "ramp", target: float = 0.95) -> ScenarioResult:
    """A contest of these frontiers; each policy picks its last point."""
    runs = len(next(iter(policies.values()))[0].scores)
    contenders = tuple(PolicyResult(policy, tuple(points), len(points) - 1) for policy, points in policies.items())
    return ScenarioResult(
        scenario, target, contenders, (score_like(target, 1.0),) * runs, (score_like(target + 0.01, 1.2),) * runs
    )


def results_like(*contests: ScenarioResult) -> Results:
    """Results of these contests."""
    return Results({"trials": 4, "training": 1, "held_out": 3, "points": 2, "sims": 8}, contests, {})
