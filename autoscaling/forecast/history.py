"""What arrived before, in even steps of ten minutes: what a forecast is made from. Pure.

Here too: reading it from rates that others counted, and from requests. Not here: keeping it while a model serves, and
reading it from a decision log's signals (`recorder.py`); forecasting (`seasonal.py`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEP_S = 600.0
A_DAY, A_WEEK = 144, 1_008
"""In steps."""
_LONGEST_GAP = 4 * A_DAY
"""A long weekend; what was before a longer gap says little about what comes after it."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class History:
    """Work (tokens) a second in each step; NaN where nobody looked. Step k since 1970 is from unix second `k * STEP_S` on; `rates[0]` is of step
    `first`."""

    first: int
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        wrong = next((rate for rate in self.rates if rate < 0 or rate == float("inf")), None)
        if wrong is not None:
            raise ValueError(f"rates: {wrong} in a history; allowed: 0 or more tokens a second, or NaN where nothing is known")

    def __len__(self) -> int:
        return len(self.rates)


def history_of_rates(unix_s: FloatArray, rates: FloatArray) -> History:
    """From rates with the times at which their steps begin, in any order. Raises ValueError for a time that is no step's."""
    number = np.round(unix_s / STEP_S).astype(np.int64)
    off = np.abs(unix_s - number * STEP_S)
    if len(off) and off.max() > 1.0:
        raise ValueError(f"unix_s: {unix_s[int(off.argmax())]:.0f} is no multiple of {STEP_S:g} s; allowed: the beginnings of steps")
    if not len(number):
        return History(0, ())
    first = int(number.min())
    filled = np.full(int(number.max()) - first + 1, np.nan)
    filled[number - first] = rates
    return History(first, tuple(filled.tolist()))


def history_of_requests(unix_s: FloatArray, work: FloatArray, until_unix_s: float | None = None) -> History:
    """From requests: when each arrived, and its work. The first and the last step are left out where they are not whole: the recording began in the
    one and ended in the other, at the last request unless `until_unix_s` says when."""
    if not len(unix_s):
        return History(0, ())
    first = int(np.ceil(unix_s.min() / STEP_S))
    last = int(np.floor((unix_s.max() if until_unix_s is None else until_unix_s) / STEP_S))
    if last <= first:
        return History(0, ())
    step = np.floor(unix_s / STEP_S).astype(np.int64) - first
    whole = (step >= 0) & (step < last - first)
    total = np.bincount(step[whole], weights=work[whole], minlength=last - first)
    return History(first, tuple((total / STEP_S).tolist()))


def known(history: History) -> FloatArray:
    """The rates from the first known one on, after the last gap of more than four days, with shorter gaps filled: by the same time of the day before,
    else of the day after, else by the line between the neighbours."""
    rates = np.array(history.rates, dtype=np.float64)
    there = np.flatnonzero(~np.isnan(rates))
    if not len(there):
        return np.zeros(0)
    breaks = np.flatnonzero(np.diff(there) > _LONGEST_GAP)
    rates = rates[there[breaks[-1] + 1] if len(breaks) else there[0] :]
    for index in np.flatnonzero(np.isnan(rates)):
        if index >= A_DAY:
            rates[index] = rates[index - A_DAY]
        elif index + A_DAY < len(rates):
            rates[index] = rates[index + A_DAY]
    gaps = np.isnan(rates)
    if gaps.any():
        rates[gaps] = np.interp(np.flatnonzero(gaps), np.flatnonzero(~gaps), rates[~gaps])
    return rates
