"""The history of arrivals in even steps of ten minutes, from which a forecast is made (`seasonal.py`).

It comes from rates, from requests, or is recorded while a model serves. It is stored in a small file (JSON, version 1),
so a restart forgets nothing. Pure but for that file.
"""

import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from cluster.files import read_json, write_json

STEP_S = 600.0
A_DAY, A_WEEK = 144, 1_008
"""In steps."""
_LONGEST_GAP = 4 * A_DAY
"""A long weekend. What was before a longer gap says little about what follows."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class History:
    """Work (tokens) a second in each step; NaN if unknown. Step k begins at unix second `k * STEP_S`; `rates[0]` is of
    step `first`."""

    first: int
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        wrong = next((rate for rate in self.rates if rate < 0 or rate == float("inf")), None)
        if wrong is not None:
            raise ValueError(
                f"rates: {wrong} in a history; allowed: 0 or more tokens a second, or NaN for an unknown rate"
            )

    def __len__(self) -> int:
        return len(self.rates)


def history_of_requests(unix_s: FloatArray, work: FloatArray, until_unix_s: float | None = None) -> History:
    """From requests: their arrival times and their work. Incomplete steps at both ends are left out: the recording ends
    at the last request unless `until_unix_s` says when."""
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
    """The rates from the first known one on, after the last gap of more than four days. Shorter gaps are filled by the
    same time of the day before, else of the day after, else by interpolation."""
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


KEPT = 4 * A_WEEK
_TELLING_S = STEP_S / 2
"""A step of which less than this was observed is unknown."""
_LONGEST_S = 3_600.0
"""Arrivals in a longer time between two readings are not spread over it, because their times are unknown."""


class Recorder:
    """The last four weeks. `closed`: the number of the last complete step, None before the first."""

    def __init__(self, history: History | None = None) -> None:
        self._rates: deque[float] = deque(() if history is None else history.rates, maxlen=KEPT)
        self.closed: int | None = None if history is None or not len(history) else history.first + len(history) - 1
        self._at_s: float | None = None
        self._epoch = 0
        self._work = 0.0
        self._step: int | None = None
        self._came = 0.0
        self._watched_s = 0.0

    @property
    def history(self) -> History:
        """Of the complete steps."""
        return (
            History(0, ()) if self.closed is None else History(self.closed - len(self._rates) + 1, tuple(self._rates))
        )

    def look(self, unix_s: float, epoch: int, work: float) -> None:
        """A reading of the work that arrived since the counts of this `epoch` began. If a clock is set back, arrivals
        meanwhile are lost."""
        before_s, came = self._at_s, work - self._work if epoch == self._epoch else work
        self._at_s, self._epoch, self._work = unix_s, epoch, work
        if before_s is None or unix_s <= before_s or came < 0 or unix_s - before_s > _LONGEST_S:
            return
        passed = unix_s - before_s
        while before_s < unix_s:
            step = int(before_s // STEP_S)
            until_s = min(unix_s, (step + 1) * STEP_S)
            self._open(step)
            self._came += came * (until_s - before_s) / passed
            self._watched_s += until_s - before_s
            before_s = until_s
        self._open(int(unix_s // STEP_S))

    def _open(self, step: int) -> None:
        if step == self._step:
            return
        if self._step is not None and (self.closed is None or self._step > self.closed):
            self._close(self._step, self._came / self._watched_s if self._watched_s >= _TELLING_S else float("nan"))
        self._step, self._came, self._watched_s = step, 0.0, 0.0

    def _close(self, step: int, rate: float) -> None:
        missed = 0 if self.closed is None else step - self.closed - 1
        self._rates.extend([float("nan")] * min(missed, KEPT))
        self._rates.append(rate)
        self.closed = step


class HistoryError(ValueError):
    """The file of a history cannot be used; the message names file, key and value."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    first: int
    rates: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None, ...]


def read_history(path: Path) -> History:
    """Reads it. Raises HistoryError."""
    content = read_json(path, _File, HistoryError)
    return History(content.first, tuple(math.nan if rate is None else rate for rate in content.rates))


def write_history(path: Path, history: History) -> None:
    """Writes it, in one move. Raises OSError."""
    write_json(
        path,
        _File(first=history.first, rates=tuple(None if math.isnan(rate) else round(rate, 3) for rate in history.rates)),
    )
