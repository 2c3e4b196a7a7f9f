"""How long a replica takes to start, learned from when it was asked for and when it took work. Starts are matched in
order."""

from collections import deque

from autoscaling.signals.signals import Signals

_KEPT = 20


class StartUps:
    """`expected_s`: the third quartile of the last starts; what was thought beforehand while there was none. A start
    that takes longer counts as it goes, so that an image that has become slow is noticed before the first one is
    there."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._asked_s: deque[float] = deque()
        self._seen: deque[float] = deque(maxlen=_KEPT)
        self._applied: int | None = None
        self._ready = 0
        self.expected_s = first_s

    def look(self, signals: Signals) -> None:
        """Takes a moment into account."""
        now, ready = signals.at_s, signals.ready
        if self._applied is None:
            self._applied, self._ready = signals.applied, ready
            return
        more = signals.applied - self._applied
        for _ in range(min(max(0, more), 10_000)):
            self._asked_s.append(now)
        for _ in range(min(max(0, -more), len(self._asked_s))):
            self._asked_s.pop()  # the platform stops those that have not started first
        for _ in range(min(max(0, ready - self._ready), len(self._asked_s))):
            self._seen.append(now - self._asked_s.popleft())
        if not signals.starting:
            self._asked_s.clear()  # an unresponsive one that speaks again was no start
        changed = more or ready != self._ready
        self._applied, self._ready = signals.applied, ready
        if changed or self._asked_s:
            ordered = sorted(self._seen)
            known = ordered[(3 * len(ordered)) // 4] if ordered else self._first_s
            running = now - self._asked_s[0] if self._asked_s else 0.0
            self.expected_s = max(known, running)

    def assume(self, factor: float) -> None:
        """All starts, known and thought of, take so many times as long."""
        self._first_s *= factor
        self._seen = deque((factor * seconds for seconds in self._seen), maxlen=_KEPT)
        self.expected_s *= factor

    def due_in_s(self, now: float) -> tuple[float, ...]:
        """In how many seconds each replica that starts is expected; the longest-awaited first."""
        return tuple(max(0.0, self.expected_s - (now - asked_s)) for asked_s in self._asked_s)
