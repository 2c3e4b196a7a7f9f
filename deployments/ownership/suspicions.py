"""What is known of queries of death (`scheduling/suspects.py`) beyond one owner's life.

Each gateway keeps a copy of what the owner tells, and hands it to its own scheduler when it becomes the owner.
"""

import logging
from collections.abc import Iterable

from deployments.ownership.roles import Channels, Submitter
from deployments.ownership.timer import now_s
from deployments.scheduling import SchedulerContract, Suspicion
from deployments.scheduling.suspects import MAX

log = logging.getLogger("raylane.suspects")


class Known:
    """A gateway's copy, on its own clock; the newest `MAX`."""

    def __init__(self) -> None:
        self._by_key: dict[str, Suspicion] = {}

    def take(self, reported: Iterable[Suspicion]) -> None:
        """The owner's word. One without deaths is clear again."""
        for one in reported:
            self._by_key.pop(one.key, None)
            if one.deaths:
                self._by_key[one.key] = one
            if len(self._by_key) > MAX:
                del self._by_key[next(iter(self._by_key))]

    def all(self) -> tuple[Suspicion, ...]:
        """The oldest first; what should be forgotten by now may be among them."""
        return tuple(self._by_key.values())


class Telling:
    """The owner's part: tells all gateways what has changed, `here` the one that it runs in, and sounds the alarm at a
    ban."""

    def __init__(self, scheduler: SchedulerContract, channels: Channels) -> None:
        self.here = Known()
        self._scheduler = scheduler
        self._channels = channels

    def begin(self, here: Known) -> None:
        """The owner's gateway is known: what it has heard of owners before comes with it."""
        self.here = here
        for one in here.all():
            self._scheduler.recall(one, now_s())

    def greet(self, submitter: Submitter) -> bool:
        """A gateway has just come: it hears of all."""
        if suspects := self._scheduler.suspicions(now_s()):
            submitter.suspected(suspects)
        return True

    def tell(self, news: tuple[Suspicion, ...]) -> None:
        """What a step of the scheduler has changed."""
        if not news:
            return
        self.here.take(news)
        for submitter in self._channels.open_ones:
            submitter.suspected(news)
        for one in news:
            if one.banned:
                log.error(
                    "ALARM: query of death: %d replicas died while a body of digest %s ran; it is refused from now on",
                    one.deaths,
                    one.key,
                )
            elif one.deaths:
                log.warning("a replica died while a body of digest %s ran", one.key)
