"""The tables of the page and of the terminal, as cells of text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planning.gauntlet.results import Point, PolicyResult, Results, ScenarioResult
from planning.gauntlet.verdict import Judgement, Regret, RivalVerdict, cliffs, interval
from planning.report.words import attained, duration, percent

POLICY_COLUMNS = (
    "policy",
    "in time",
    "replica-hours",
    "$",
    "flaps",
    "changes",
    "longest broken",
    "TTFT p99",
    "settings",
)
REGRET_COLUMNS = ("policy", "in time", "hours", "$", "oracle", "unavoidable", "its own", "of the oracle's", "flaps")
SIGNS = {
    RivalVerdict.DOMINATES: "✓ better",
    RivalVerdict.TIES: "= as good",
    RivalVerdict.BELOW: "~ broken only",
    RivalVerdict.LOSES: "✗ worse",
    RivalVerdict.ALONE: "✓ alone",
}
KINDS = {RivalVerdict.LOSES: "bad", RivalVerdict.BELOW: ""}


@dataclass(frozen=True, slots=True)
class TableCell:
    """`kind` colours it; `note` is the small print."""

    text: str
    kind: str = ""
    note: str = ""


def verdict_cell(judgement: Judgement | None) -> TableCell:
    """Ours against one rival in one scenario."""
    if judgement is None:
        return TableCell("-")
    sign, kind = SIGNS[judgement.verdict], KINDS.get(judgement.verdict, "good")
    if judgement.attainment is None or judgement.hours is None:
        return TableCell(sign, kind)
    points, hours = 100 * judgement.attainment.mean, judgement.hours.mean
    return TableCell(sign, kind, f"{points:+.2f} %, {hours:+.2f} h")


def policy_rows(contest: ScenarioResult) -> list[tuple[str, ...]]:
    """A row of `POLICY_COLUMNS` a policy, for its pick; then the limits."""
    rows = [_policy_row(one) for one in sorted(contest.contenders, key=lambda one: -one.picked.attainment)]
    known, oracle = Point({}, contest.known_rate), Point({}, contest.oracle)
    rows.append(("known-rate baseline", *_figures(known), "its headroom only"))
    rows.append(
        (
            "oracle",
            attained(oracle.attainment),
            f"{contest.oracle_hours.mean():.3f}",
            *_figures(oracle)[2:],
            "",
        )
    )
    return rows


def regret_rows(regrets: Sequence[Regret]) -> list[tuple[str, ...]]:
    """A row of `REGRET_COLUMNS` a policy."""
    return [
        (
            one.policy,
            attained(one.attainment),
            f"{one.hours:.2f}",
            f"{one.usd:.2f}",
            f"{one.oracle:.2f}",
            f"{one.unavoidable:+.2f}",
            f"{one.ours:+.2f}",
            percent(one.share, 1),
            f"{one.flaps:.1f}",
        )
        for one in sorted(regrets, key=lambda one: one.hours)
    ]


def cliff_rows(results: Results, steps: Mapping[str, float], policies: Sequence[str]) -> list[tuple[str, ...]]:
    """A row a policy: the percentage in time at each step, and where it falls under the SLO."""
    rows = []
    for policy in policies:
        found, cliff = cliffs(results, steps, policy)
        rows.append(
            (
                policy,
                *(attained(value).removesuffix(" %") for _, value in found),
                "never" if math.isinf(cliff) else f"{cliff:g} s",
            )
        )
    return rows


def _policy_row(one: PolicyResult) -> tuple[str, ...]:
    settings = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in one.picked.settings.items()
    )
    return (one.policy, *_figures(one.picked), settings or "its defaults")


def _figures(point: Point) -> tuple[str, ...]:
    spread = interval(point.attainments).half
    return (
        attained(point.attainment) + (f" ± {100 * spread:.2f}" if 5e-5 <= spread < math.inf else ""),
        f"{point.mean_hours:.3f}",
        f"{point.mean_of('usd'):.2f}",
        f"{point.mean_of('flaps'):.1f}",
        f"{point.mean_of('changes'):.1f}",
        duration(point.mean_of("recovery_s")),
        duration(point.mean_of("ttft_p99_s")),
    )
