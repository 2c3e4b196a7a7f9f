"""When fewer are enough: only if they were for long, by a margin, and if they carry what the busiest moment of that
time brought."""

from collections import deque


class Stabiliser:
    """The largest number that was needed in the last `span` seconds, kept as a descending queue."""

    def __init__(self) -> None:
        self._needed: deque[tuple[float, float]] = deque()
        self._since_s: float | None = None
        self._longest_s = 0.0

    def look(self, now: float, needed: float) -> None:
        """So many (a fraction too) were needed at this moment."""
        if self._since_s is None:
            self._since_s = now
        while self._needed and self._needed[-1][1] <= needed:
            self._needed.pop()
        self._needed.append((now, needed))

    def maximum(self, now: float, span_s: float) -> float | None:
        """The largest of the last `span_s` seconds; None while less than that was seen. Spans may differ from call to
        call."""
        if self._since_s is None or now - self._since_s < span_s:
            return None
        self._longest_s = max(self._longest_s, span_s)
        while len(self._needed) > 1 and self._needed[0][0] < now - self._longest_s:
            self._needed.popleft()
        return next((needed for at_s, needed in self._needed if at_s >= now - span_s), self._needed[-1][1])
