"""The statistics of the forecast: an autoregression with the day and the week as Fourier series, fitted by least
squares.

    z(t) = sqrt(rate(t)) = c + sum over k of (a[k] sin + b[k] cos)(2 pi k t / day) + the same for the week + sum over i
    of phi[i] z(t - i) + e(t)

The root makes the noise of counts even (its variance grows with the rate) and bears nights without any traffic, which a
logarithm does not. Back from z ~ N(m, s^2): E rate = m^2 + s^2, Var rate = 4 m^2 s^2 + 2 s^4. The variance h steps
ahead is s^2 times the sum of the squares of the first h weights of the process as a moving average. A fit takes
milliseconds, which a thread beside a controller can afford every ten minutes. On two weeks of recorded traffic heavier
methods (MSTL with an autoregression of the rest, Holt-Winters) were no more exact. Hyndman,
Athanasopoulos: Forecasting: Principles and Practice, 3rd ed., sections 10.5 and 12.1 (dynamic harmonic regression, for
long and several seasons).

One thread of BLAS: matrices this small gain nothing by more, and on two cores that others used too, threads that spun
while they waited for each other took nine times as long (6.9 s instead of 0.8 s for 140 fits), and took that time from
the others.
"""

import numpy as np
from threadpoolctl import threadpool_limits

from autoscaling.forecast.history import A_DAY, A_WEEK, FloatArray

MIN = A_DAY
_LAGS = 3
_DAY_TERMS = 6
_WEEK_TERMS = 6
"""The seventh would be the day's first."""
_MAX = 2.0
"""No forecast exceeds this multiple of the largest rate seen: an autoregression can run away."""
_RANK = 1e-15
"""Singular values below this share of the largest count as 0: rates that hardly change have no unique fit, but still a
forecast."""


def foretell(rates: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
    """The expected rates of the next `steps` steps and their standard errors, from at least `MIN` rates without gaps. A
    weekly pattern needs two weeks or more. Raises ValueError for fewer rates, ArithmeticError or LinAlgError if there
    is no forecast."""
    if len(rates) < MIN:
        raise ValueError(f"{len(rates)} rates; allowed: at least {MIN}, a day of them")
    roots = np.sqrt(rates)
    if np.ptp(roots) <= 1e-9 * max(1.0, float(roots.max())):
        return np.full(steps, float(rates[-1])), np.zeros(steps)
    with threadpool_limits(1, "blas"):
        mean, error = _autoregression(roots, steps)
    if not (np.isfinite(mean).all() and np.isfinite(error).all()):
        raise ArithmeticError("the forecast is not finite")
    mean = np.clip(mean, 0.0, np.sqrt(_MAX * rates.max()))
    return np.minimum(mean**2 + error**2, _MAX * rates.max()), np.sqrt(4 * mean**2 * error**2 + 2 * error**4)


def _autoregression(roots: FloatArray, steps: int) -> tuple[FloatArray, FloatArray]:
    """The next values and their standard errors."""
    count = len(roots)
    seasons = _seasons(count + steps, weekly=count >= 2 * A_WEEK)
    lagged = [roots[_LAGS - lag : count - lag] for lag in range(1, _LAGS + 1)]
    known = np.column_stack([seasons[_LAGS:count], *lagged])
    factors = np.linalg.lstsq(known, roots[_LAGS:], rcond=_RANK)[0]
    variance = float(np.mean((roots[_LAGS:] - known @ factors) ** 2))
    base, phi = seasons[count:] @ factors[:-_LAGS], factors[-_LAGS:]
    values, weights = roots[-_LAGS:].tolist(), [*[0.0] * (_LAGS - 1), 1.0]
    for ahead in range(steps):
        values.append(float(base[ahead] + phi @ values[: -_LAGS - 1 : -1]))
        weights.append(float(phi @ weights[: -_LAGS - 1 : -1]))
    spread = np.cumsum(np.square(weights[_LAGS - 1 : -1]))
    return np.array(values[_LAGS:]), np.sqrt(variance * spread)


def _seasons(count: int, weekly: bool) -> FloatArray:
    """A row for each step: 1, and the waves of the day and of the week."""
    periods = [(A_DAY, _DAY_TERMS), *([(A_WEEK, _WEEK_TERMS)] if weekly else [])]
    at = 2 * np.pi * np.arange(count)
    waves = [
        wave(term * at / period)
        for period, terms in periods
        for term in range(1, terms + 1)
        for wave in (np.sin, np.cos)
    ]
    return np.column_stack([np.ones(count), *waves])
