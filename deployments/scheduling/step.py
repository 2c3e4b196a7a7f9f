"""What one step of the scheduler decided."""

from dataclasses import dataclass, field

from deployments.scheduling.admission import Admission
from deployments.scheduling.request import Placement, Request
from deployments.scheduling.suspects import Suspicion


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """A request that waited, and is turned away after all: `admission` says why, and when to come back."""

    request: Request
    admission: Admission


@dataclass(frozen=True, slots=True)
class Step:
    """Requests placed, requests whose wait ran out, and those for which it would; and whose standing has changed as a suspect."""

    placements: tuple[Placement, ...]
    expired: tuple[Request, ...]
    turned_away: tuple[TurnedAway, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()


_NOTHING = Step((), ())


@dataclass(slots=True)
class Decided:
    """What is on the books and not yet handed to the shell.

    A decision is added in the same moment as it changes the books, before anything is counted or learned from it. So whatever raises later in the
    step, no lease and no request is lost: the next step hands them over.
    """

    placements: list[Placement] = field(default_factory=list)
    expired: list[Request] = field(default_factory=list)
    turned_away: list[TurnedAway] = field(default_factory=list)

    def hand_over(self, suspicions: tuple[Suspicion, ...] = ()) -> Step:
        """All of it, once."""
        if not (self.placements or self.expired or self.turned_away or suspicions):
            return _NOTHING
        step = Step(tuple(self.placements), tuple(self.expired), tuple(self.turned_away), suspicions)
        self.placements, self.expired, self.turned_away = [], [], []
        return step
