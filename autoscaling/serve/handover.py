"""The number of replicas, handed from the thread that decides to Serve's control loop, which asks some ten times a
second. Pure but for its lock.

Serve applies a number at the tick that asks for it, except that it goes from many to none in two. So what was asked for
counts as applied until Serve has had its ticks. Once it was, another number is another hand's (a deploy, an operator of
Serve): it stands until the next decision, which is taken from there.
"""

import threading

PATIENCE_TICKS = 20
"""A number that Serve has not taken over in so many ticks was refused."""


class Handover:
    """`tick` is Serve's side, `ask` and `applied` are the other's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._target: int | None = None
        self._asked: int | None = None
        self._on_its_way = 0

    def tick(self, target: int) -> int:
        """Serve runs `target` and wants to know how many it should."""
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
        """What Serve was last told; None before its first tick."""
        with self._lock:
            return self._asked if self._on_its_way else self._target
