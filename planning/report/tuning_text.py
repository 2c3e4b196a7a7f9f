"""The headline of a proposal, its figures and its table, as text: for the page, and for the terminal."""

from collections.abc import Iterable, Sequence

from autoscaling.policies.settings import Value
from planning.report.words import Card, attained, duration, percent
from planning.tune.advice import Advice, exact_of
from planning.tune.choice import Ground
from planning.tune.trial import OWN, TuningTrial

_GROUNDS = {
    Ground.SURE: "the cheapest that meet every SLO, also on 9 of 10 days drawn from the half-hours of this one",
    Ground.KEPT: "the cheapest that met every SLO on this day; on 1 of 10 days drawn from its half-hours they would "
    "not",
    Ground.NEAREST: "NO settings met every SLO; these came nearest",
}


def headline(advice: Advice) -> tuple[str, str]:
    """What was found: the judgement in one line, and what to know next."""
    ground = _GROUNDS[advice.chosen.ground]
    if not advice.worth_it:
        line = f"Nothing found that is better than what the spec says ({_effect(advice.before, advice)})."
        own = advice.chosen.trial is advice.before
        story = (
            f"Its settings are the best found: {ground}."
            if own
            else f"Too little would change with the best found to propose them: {ground}."
        )
        return line, story
    story = f"Proposed: {ground}."
    before, after = _effect(advice.before, advice), _effect(advice.chosen.trial, advice)
    return f"{before} now; {after} with the proposed settings.", story


def mark(advice: Advice) -> str:
    """What the chosen settings are called."""
    return "proposed" if advice.worth_it else "the best found"


def _effect(trial: TuningTrial, advice: Advice) -> str:
    usd = advice.usd_a_day(trial)
    cost = f"{advice.hours_a_day(trial):,.0f} {advice.price.hours} a day" + ("" if usd is None else f" (${usd:,.0f})")
    return f"{attained(trial.whole.attainment)} in time for {cost}"


def cards(advice: Advice) -> tuple[Card, ...]:
    """Before and after, figure by figure."""
    before, after = advice.before, advice.chosen.trial
    range_ = advice.ranges.get(after.name)
    found = [
        Card(
            f"{name} in time",
            arrow(attained(before.whole.attained(name)), attained(after.whole.attained(name))),
            f"SLO {100 * share:g} %" + ("" if range_ is None else _range(map(attained, range_.attained[name]))),
        )
        for name, share in advice.slos.items()
        if name in after.whole.classes
    ]
    old, new = advice.hours_a_day(before), advice.hours_a_day(after)
    saved = f"{new / old - 1:+.1%}" if old else ""
    hours = "" if range_ is None else _range(f"{advice.a_day(end):,.1f}" for end in range_.replica_hours)
    found.append(Card(f"{advice.price.hours} a day", arrow(f"{old:,.1f}", f"{new:,.1f}"), saved + hours))
    usd = advice.usd_a_day(before), advice.usd_a_day(after)
    if usd[0] is not None and usd[1] is not None:
        found.append(Card("US dollars a day", arrow(f"{usd[0]:,.0f}", f"{usd[1]:,.0f}"), f"{usd[1] - usd[0]:+,.0f}"))
    one, other = exact_of(before), exact_of(after)
    found.append(
        Card(
            "Replicas, mean",
            arrow(f"{one.mean_replicas:.2f}", f"{other.mean_replicas:.2f}"),
            f"{other.changes:,} changes, {other.flaps:,} flaps",
        )
    )
    late = "" if range_ is None else _range(duration(end) for end in range_.ttft_p99_s)
    p99 = arrow(duration(one.ttft_p99_s), duration(other.ttft_p99_s))
    found.append(Card("TTFT p99", p99, f"of the answered{late}"))
    return tuple(found)


def _range(ends: Iterable[str]) -> str:
    return f"; range {' to '.join(ends)}"


def arrow(before: str, after: str) -> str:
    """A change, or that there is none."""
    return after if before == after else f"{before} -> {after}"


def columns(advice: Advice, settings: bool = True) -> tuple[str, ...]:
    """Of the table of the front: what each took and kept, and the `settings` in which any differ."""
    classes = tuple(f"{name} in time" for name in advice.before.whole.classes)
    money = () if advice.price.usd_per_hour is None else ("USD/day",)
    return (
        "settings",
        *classes,
        f"{advice.price.hours}/day",
        *money,
        "replicas",
        "changes",
        "flaps",
        "TTFT p99",
        *(_varied(advice) if settings else ()),
    )


def rows(advice: Advice, settings: bool = True) -> list[tuple[TuningTrial, tuple[str, ...]]]:
    """A row of `columns` each: the spec's own first, then the front, the cheapest first; the proposal is among them, or
    last."""
    shown = [advice.before, *(trial for trial in advice.front if trial is not advice.before)]
    if advice.chosen.trial not in shown:
        shown.append(advice.chosen.trial)
    varied = _varied(advice) if settings else []
    return [(trial, (*_figures(trial, advice), *(_setting(trial, name) for name in varied))) for trial in shown]


def _figures(trial: TuningTrial, advice: Advice) -> Sequence[str]:
    exact, usd = exact_of(trial), advice.usd_a_day(trial)
    kept = tuple(attained(trial.whole.attained(name)) for name in trial.whole.classes)
    money = () if usd is None else (f"{usd:,.0f}",)
    name = "spec (now)" if trial.name == OWN else trial.name
    return (
        name,
        *kept,
        f"{advice.hours_a_day(trial):,.1f}",
        *money,
        f"{exact.mean_replicas:.2f}",
        str(exact.changes),
        str(exact.flaps),
        duration(exact.ttft_p99_s),
    )


def _varied(advice: Advice) -> list[str]:
    """The settings in which those that are shown differ."""
    shown = [
        trial.candidate for trial in (advice.before, *advice.front, advice.chosen.trial) if trial.candidate is not None
    ]
    first = shown[0]
    return list(dict.fromkeys(name for one in shown[1:] for name in one.differs_from(first)))


def _setting(trial: TuningTrial, name: str) -> str:
    if trial.candidate is None:
        return "-"
    return _value(trial.candidate.minimum if name == "replicas.min" else trial.candidate.settings.get(name))


def _value(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def gain_lines(advice: Advice) -> list[str]:
    """What each change of the proposal gains, a line each."""
    found = []
    for gain in advice.gains:
        change = f"{gain.setting} {_value(gain.now)} -> {_value(gain.proposed)}"
        missed = [
            f"{name} {attained(share)} in time (SLO {100 * advice.slos[name]:g} %)"
            for name, share in gain.attained.items()
            if share < advice.slos[name]
        ]
        hours = advice.a_day(gain.saves)
        effect = f"{'saves' if hours >= 0 else 'costs'} {abs(hours):,.1f} {advice.price.hours} a day"
        if not gain.kept:
            found.append(f"{change} gains nothing ({effect}): left as it is")
        else:
            found.append(f"{change} {effect}" + (f"; without it {', '.join(missed)}" if missed else ""))
    return found


def check_line(advice: Advice) -> str:
    """What the chosen settings came to on the other trace; empty where there is none."""
    check = advice.check
    if check is None:
        return ""
    shares = ", ".join(
        f"{name} {attained(check.after.attained(name))} in time (SLO {100 * advice.slos[name]:g} %)"
        for name in check.after.classes
    )
    before, after = (f"{advice.a_day(run.replica_hours, check.span_s):,.1f}" for run in (check.before, check.after))
    missed = check.missed(advice.slos)
    judgement = f"MISSED by {', '.join(missed)}" if missed else "met"
    return f"on {check.trace}: {shares} for {after} {advice.price.hours} a day ({before} as it is now): {judgement}"


def notes(advice: Advice) -> list[str]:
    """What else whoever sets this should know."""
    found = []
    if advice.at_risk:
        found.append(
            f"{', '.join(advice.at_risk)}: with the costs at an end of their range the SLO is missed ({advice.costs}): "
            "calibrate on this deployment before this is set."
        )
    cut = exact_of(advice.chosen.trial).at_most
    if cut > 0.01:
        found.append(
            f"replicas.max or the cost ceiling cut {percent(cut, 1)} of the policy's decisions: with a higher one more "
            "SLOs could be met."
        )
    if advice.chosen.ground is Ground.KEPT:
        found.append(
            "SLOs are kept narrowly: run other days with the proposed spec (`raylane simulate`) before it is set."
        )
    if len(advice.before.whole.classes) < len(advice.slos):
        missing = sorted(set(advice.slos) - set(advice.before.whole.classes))
        found.append(
            f"The traffic has no request of {', '.join(missing)}: nothing is known of what these settings do to it."
        )
    return found
