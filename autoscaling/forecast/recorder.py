"""Keeps what arrives, in even steps, while a model serves: from cumulative counts, so that a reading that was lost loses nothing."""

from collections import deque
from collections.abc import Iterable

from autoscaling.forecast.history import A_WEEK, STEP_S, History
from autoscaling.signals.signals import Signals

KEPT = 4 * A_WEEK
_TELLING_S = STEP_S / 2
"""A step in which less than this was watched is not known."""
_LONGEST_S = 3_600.0
"""What came in a longer time between two looks is not spread over it: nobody knows when it came."""


class Recorder:
    """The last four weeks. `closed`: the number of the last step that is over, None before any."""

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
        """Of the steps that are over."""
        return History(0, ()) if self.closed is None else History(self.closed - len(self._rates) + 1, tuple(self._rates))

    def look(self, unix_s: float, epoch: int, work: float) -> None:
        """Takes a reading of the work that arrived since the counts of this `epoch` began. A clock that is set back loses what came meanwhile."""
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


def history_of_signals(moments: Iterable[Signals]) -> History:
    """From the signals that a decision log kept, in the order of time."""
    recorder = Recorder()
    for signals in moments:
        recorder.look(signals.unix_s, signals.epoch, signals.arrived_work)
    return recorder.history
