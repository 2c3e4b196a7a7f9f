"""What a law's numbers came to, over the time that two laws were compared. Pure."""

from collections import Counter
from dataclasses import dataclass

from autoscaling.shadow.flaps import Change, FlapCounter
from autoscaling.shadow.fluid import FluidFleet


@dataclass(frozen=True, slots=True)
class Tally:
    """Of one law: `replica_hours` paid, `short_s` by the fluid model, how often its number changed and how many of these changes were flaps, how
    often which reason decided."""

    law: str
    number: int
    replica_hours: float
    short_s: float
    changes: int
    flaps: int
    reasons: dict[str, int]


class Ledger:
    """Keeps it, for a law that begins with so many ready replicas."""

    def __init__(self, law: str, ready: int, at_s: float) -> None:
        self.law = law
        self.fleet = FluidFleet(ready, at_s)
        self.number = ready
        self._changes = 0
        self._flaps = FlapCounter()
        self._reasons: Counter[str] = Counter()

    def decided(self, at_s: float, number: int, reason: str, load: float, start_up_s: float) -> None:
        """It asks for `number` now. `load`: in replicas' worth."""
        self._reasons[reason] += 1
        if number != self.number:
            self._changes += 1
            self._flaps.take(Change(at_s, self.number, number), load)
            self.number = number
        self.fleet.ask(number, start_up_s)

    def tally(self) -> Tally:
        """The sums so far."""
        fleet = self.fleet
        return Tally(self.law, self.number, fleet.paid_s / 3600, fleet.short_s, self._changes, self._flaps.count, dict(self._reasons))
