"""Proposes settings by a surrogate: what was seen, interpolated, and the cheapest place of it that is not too near to
what is known. Pure.

    f(x)       thin-plate splines through ln hours and, for each class, ln (missed / may be missed); x: the settings,
               each scaled to 0 .. 1
    value(x)   ln hours + what the worst class lacks                                                   0 where every SLO
               is kept
    proposal   of many x, drawn evenly and around the best that are known, the one of the least
                   w * (value, scaled to 0 .. 1) + (1 - w) * (nearness to what is known, scaled to 0 .. 1)      w goes
                   round `_WEIGHTS`

R. G. Regis, C. A. Shoemaker: A Stochastic Radial Basis Function Method for the Global Optimization of Expensive
Functions, INFORMS Journal on Computing 19(4), 2007. Settings act smoothly, so that a surface through a hundred looks
says more of the next than a density of the good ones does: with every other proposal from here, the search came within
2 % of the best on average and 4 % at worst; with a tree-structured Parzen estimator alone, within 5 % and 13 % (the
plant of `test_search.py`, eight seeds).
"""

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import RBFInterpolator

from planning.workload.arrivals import FloatArray

_SMOOTHING = 1e-3
_WEIGHTS = (0.95, 0.8, 0.6)
_EVEN = 400
_AROUND = 300
_SPREADS = (0.2, 0.07, 0.02)
"""Standard deviations of the steps around the best, in shares of a range."""
_BEST = 5
_FEWEST_MORE = 2
"""A plane through d settings takes d + 1 looks; so many more, and there is something to tell."""


@dataclass(frozen=True, slots=True)
class Observations:
    """Looks: the settings, the logarithm of the hours, and by class that of what was missed over what may be. A row
    each."""

    places: FloatArray
    ln_hours: FloatArray
    ln_missed: FloatArray

    @property
    def enough(self) -> bool:
        count, settings = self.places.shape
        return bool(
            count >= settings + 1 + _FEWEST_MORE
            and np.linalg.matrix_rank(self.places - self.places.mean(axis=0)) == settings
        )


def propose(seen: Observations, number: int, rng: np.random.Generator) -> FloatArray:
    """The next settings to look at, 0 to 1 each. `number` counts proposals. Raises what NumPy or SciPy raise where no
    surface can be laid."""
    surface = RBFInterpolator(
        seen.places,
        np.column_stack([seen.ln_hours, seen.ln_missed]),
        kernel="thin_plate_spline",
        smoothing=_SMOOTHING,
        degree=1,
    )
    best = seen.places[np.argsort(_value(seen.ln_hours, seen.ln_missed), kind="stable")[:_BEST]]
    places = np.concatenate([rng.random((_EVEN, best.shape[1])), *(_around(best, spread, rng) for spread in _SPREADS)])
    reported = surface(places)
    value = _value(reported[:, 0], reported[:, 1:])
    nearest = np.sqrt(((places[:, None, :] - seen.places[None]) ** 2).sum(axis=-1)).min(axis=1)
    weight = _WEIGHTS[number % len(_WEIGHTS)]
    chosen: FloatArray = places[int(np.argmin(weight * _scaled(value) - (1 - weight) * _scaled(nearest)))]
    return chosen


def _value(ln_hours: FloatArray, ln_missed: FloatArray) -> FloatArray:
    value: FloatArray = ln_hours + np.maximum(0.0, ln_missed).max(axis=1)
    return value


def _around(best: FloatArray, spread: float, rng: np.random.Generator) -> FloatArray:
    """Steps from the best, in about half of the settings each."""
    begin = best[rng.integers(len(best), size=_AROUND)]
    steps = spread * rng.standard_normal(begin.shape) * (rng.random(begin.shape) < 0.5)
    return np.clip(begin + steps, 0.0, 1.0)


def _scaled(values: FloatArray) -> FloatArray:
    scaled: FloatArray = (values - values.min()) / (np.ptp(values) + 1e-12)
    return scaled
