"""Hands the number of replicas from the thread that decides to Serve's control loop, which asks some ten times a
second. Pure but for its lock.

Serve applies a number at the tick that asks for it; only from many to none it takes two ticks. The requested number
therefore counts as applied until Serve has had its ticks. After that, a different number comes from something else (a
deploy, an operator of Serve): it stands until the next decision, which starts from it.
"""

import threading

PATIENCE_TICKS = 20
"""A number that Serve has not applied after so many ticks was refused."""


class Handover:
    """Serve's loop calls `tick`, the deciding thread `ask` and `applied`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._target: int | None = None
        self._asked: int | None = None
        self._on_its_way = 0

    def tick(self, target: int) -> int:
        """Serve runs `target` replicas and gets the number that it should run."""
        with self._lock:
            self._target = target
            if self._asked is None or self._asked == target:
                self._on_its_way = 0
            if not self._on_its_way or self._asked is None:
                return target
            self._on_its_way -= 1
            return self._asked

    def ask(self, number: int) -> None:
        with self._lock:
            settled = not self._on_its_way  # else Serve may run another number by now than at its last tick
            self._asked = number
            self._on_its_way = 0 if settled and number == self._target else PATIENCE_TICKS

    @property
    def applied(self) -> int | None:
        """Serve's last target; None before its first tick."""
        with self._lock:
            return self._asked if self._on_its_way else self._target
