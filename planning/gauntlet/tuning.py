"""Searches for a policy's best settings in one scenario: the same number of trials for every policy, the defaults
first.

Optuna's multi-objective TPE (Ozaki et al., Journal of AI Research 73, 2022): more attainment, fewer replica-hours.
Settings far below the SLO count as constraint violations, so trials avoid them. Seeded: the same trials give the same
settings.
"""

import math
import warnings
from collections.abc import Callable, Mapping

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial

from autoscaling.policies.policy import PolicyEntry
from autoscaling.policies.settings import Range, Value
from planning.gauntlet.frontier import TriedSettings, floor_of

_DIGITS = 3
_AT_RANDOM = 0.35
"""The share of the trials before the sampler begins to learn."""
_SHORT = "short_by"

Ranges = Mapping[str, Range]


Judge = Callable[[Mapping[str, Value]], TriedSettings]
"""Takes settings, returns their figures over the training runs."""


def search(
    entry: PolicyEntry, target: float, trials: int, seed: int, judge: Judge, slo_s: float | None = None
) -> list[TriedSettings]:
    """`slo_s`: the tightest SLO of a first token. A policy with a setting for it gets it in the second trial."""
    tried = [judge({})]
    ranges = entry.quick_search()
    if trials < 2 or not ranges:
        return tried
    distributions = {name: _distribution(found) for name, found in ranges.items()}
    study = _study(trials, seed)
    study.add_trial(_reported(tried[0], entry, ranges, target))
    if entry.slo is not None and slo_s is not None:
        study.enqueue_trial({**_defaults(entry, ranges), entry.slo: _within(ranges[entry.slo], slo_s)})
    while len(tried) < trials:
        trial = study.ask(distributions)
        settings = {name: _plain(value) for name, value in trial.params.items()}
        found = judge(settings)
        trial.set_constraint(_SHORT, floor_of(target) - found.attainment)
        study.tell(trial, (found.attainment, found.replica_hours))
        tried.append(found)
    return tried


def _study(trials: int, seed: int) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, n_startup_trials=max(2, math.ceil(_AT_RANDOM * trials))
        )
    return optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)


def _reported(tried: TriedSettings, entry: PolicyEntry, ranges: Ranges, target: float) -> FrozenTrial:
    """The defaults as a trial of the study."""
    params = _defaults(entry, ranges)
    return create_trial(
        params=params,
        distributions={name: _distribution(ranges[name]) for name in params},
        values=[tried.attainment, tried.replica_hours],
        constraints={_SHORT: floor_of(target) - tried.attainment},
    )


def _defaults(entry: PolicyEntry, ranges: Ranges) -> dict[str, Value]:
    """The defaults of the searched settings, within their ranges; settings without a default are left out."""
    default = entry.settings()
    params = {name: getattr(default, name) for name in ranges}
    return {name: _within(ranges[name], float(value)) for name, value in params.items() if value is not None}


def _within(found: Range, value: float) -> Value:
    value = min(found.high, max(found.low, value))
    return round(value) if found.integer else value


def _distribution(found: Range) -> BaseDistribution:
    if found.integer:
        return IntDistribution(round(found.low), round(found.high), log=found.log)
    return FloatDistribution(found.low, found.high, log=found.log)


def _plain(value: float) -> Value:
    """Rounded to a few digits, for readers."""
    return value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")
