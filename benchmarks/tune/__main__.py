"""Tunes a bad spec on one day, and judges what comes out on another, against the best that a much longer search finds on that other day itself.

    regret = replica-hours of the proposal on the other day / the fewest known with which as many requests are in time there - 1

The long search knows the day that it is judged on, and looks for the cheapest settings that keep at least the share that the proposal kept: equal
attainment, so that hours alone compare. Time is that of the processor: one core, however busy the machine is.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.serving.machine import run_facts
from benchmarks.serving.program import console, write_json
from benchmarks.tune.case import SPEC, case
from benchmarks.tune.days import other_day, recorded_day
from cluster.spec import load_spec
from deployments.garbage import calm_garbage_collector
from planning.tune.case import Case, own_and_defaults, space_of
from planning.tune.choice import choose
from planning.tune.player import Player
from planning.tune.search import Budget, Search
from planning.tune.trial import Candidate, Played, Trial

_CLASS = "interactive"


def searched(tuned: Case, minutes: float, own: Candidate | None, seed: int) -> list[Trial]:
    """A search of that many minutes of processor time."""
    spec = load_spec(SPEC)
    first, defaults = own_and_defaults(spec, spec.models[0])
    began_s = time.process_time()
    player = Player(tuned, time.process_time)
    search = Search(player, space_of(tuned, first, defaults), tuned.setup.attainment, Budget(60 * minutes), time.process_time, seed=seed)
    trials = search.run(own or first, defaults)
    looked = sum(trial.draft is not None for trial in trials)
    played = sum(trial.finished for trial in trials)
    took = (time.process_time() - began_s) / 60
    console.print(f"{looked} settings looked at, {played} played through in {took:.1f} minutes of one core", style="dim")
    return trials


def judged(player: Player, candidate: Candidate) -> Played:
    """A run of the whole day."""
    return player.exact(candidate, float("inf"), to_the_end=True)


def fewest(trials: list[Trial], attainment: float) -> Trial:
    """The cheapest of the runs that kept that share."""
    able = [trial for trial in trials if trial.finished and trial.exact is not None and trial.exact.attainment >= attainment - 1e-9]
    return min(able, key=lambda trial: trial.exact.replica_hours if trial.exact is not None else 0.0)


def main(
    traces: Annotated[Path, typer.Argument(help="The folder with ServeGen's tables.")],
    minutes: Annotated[float, typer.Option(help="Of the search on trial.")] = 10.0,
    best_minutes: Annotated[float, typer.Option(help="Of the search for the best known.")] = 60.0,
    requests: Annotated[int, typer.Option(min=1_000, help="Of a day.")] = 80_000,
    other: Annotated[str, typer.Option(help="The other day: MODEL:DAY, or `redrawn` for the same rates.")] = "m-small:8",
    seed: Annotated[int, typer.Option(help="Of the search on trial.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
) -> None:
    """Tune on a day, judge on another."""
    calm_garbage_collector()
    train = case(recorded_day(traces, requests, 1))
    model, _, day = other.partition(":")
    test = case(recorded_day(traces, requests, 2) if other == "redrawn" else other_day(traces, model, int(day), requests, 2))
    console.print(f"tuning on {len(train.work):,} requests, judging on {len(test.work):,} of {other}")
    trials = searched(train, minutes, None, seed)
    chosen = choose(trials, train.setup.attainment)
    proposal, own = chosen.trial.candidate, trials[0].candidate
    assert proposal is not None
    assert own is not None
    player = Player(test, time.process_time)
    after, before = judged(player, proposal), judged(player, own)
    rows: dict[str, tuple[Candidate | None, Played | None]] = {
        "tuned day, spec": (own, trials[0].exact),
        "tuned day, proposal": (proposal, chosen.trial.exact),
        "other day, spec": (own, before),
        "other day, proposal": (proposal, after),
    }
    for name, (_, played) in rows.items():  # at once: the long search may be ended
        _print(name, played)
    equal = replace(test, setup=replace(test.setup, attainment={_CLASS: min(0.9999, after.attained(_CLASS))}))
    known = [*searched(equal, best_minutes, proposal, seed + 1), Trial("proposal", proposal, exact=after)]
    best = fewest(known, after.attainment)
    assert best.exact is not None
    regret = after.replica_hours / best.exact.replica_hours - 1
    rows["other day, best known"] = (best.candidate, best.exact)
    _print("other day, best known", best.exact)
    console.print(f"ground of the choice: {chosen.ground}; regret on the other day, at equal attainment: {regret:.1%}")
    told: dict[str, Any] = {name: _told(*row) for name, row in rows.items()}
    write_json({**run_facts(), "minutes": minutes, "best_minutes": best_minutes, "other": other, "regret": regret, "runs": told}, json_file)


def _print(name: str, played: Played | None) -> None:
    if played is not None:
        console.print(f"{name:24} {played.replica_hours:8.1f} replica-hours, {played.attainment:.3%} in time")


def _told(candidate: Candidate | None, played: Played | None) -> dict[str, Any]:
    settings = None if candidate is None else {**candidate.settings, "replicas.min": candidate.least}
    return {"settings": settings, "replica_hours": played and played.replica_hours, "attainment": played and played.attainment}


if __name__ == "__main__":
    typer.run(main)
