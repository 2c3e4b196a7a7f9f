"""This gateway's place among the gateways of its cell: tells the directory again and again that it lives, and what it
owns."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deployments.cell.departure_tracker import Presence, own_presence

log = logging.getLogger("raylane.ownership")

JOIN_EVERY_S = 1.0
_ANSWER_S = 5.0
"""How long a call to the directory is waited for; the next one is made anyway."""


@dataclass(frozen=True, slots=True)
class Member:
    """A gateway as the others know it: its id, where it listens for them, and the models that it could own."""

    gateway_id: str
    url: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Epochs:
    """Of models, as a gateway knows them: under which it owns some, and the highest that it has heard of."""

    owned: dict[str, int]
    seen: dict[str, int]


@dataclass(eq=False)
class Membership:
    """`directory` is an actor's handle. Everything but `leave` returns at once: the directory may be down."""

    directory: Any
    member: Member
    epochs: Callable[[], Epochs]
    presence: Callable[[], Presence] = own_presence
    _reported: dict[tuple[str, str], asyncio.Task[None]] = field(init=False, default_factory=dict)

    async def run(self) -> None:
        """Registers again and again, for ever."""
        member = self.member
        while True:
            epochs = self.epochs()
            await self._tell(
                "join", member.gateway_id, member.url, member.models, epochs.owned, epochs.seen, self.presence()
            )
            await asyncio.sleep(JOIN_EVERY_S)

    async def leave(self) -> None:
        """Gives up what this gateway owns; `run` must not run any more."""
        await self._tell("leave", self.member.gateway_id)

    def overtaken(self, model: str, highest: int) -> None:
        """An engine knows of an epoch higher than any that was reported here."""
        self._tell_soon("overtaken", model, highest)

    def doubt(self, gateway_id: str) -> None:
        """A gateway is dead or unresponsive."""
        self._tell_soon("give_up", gateway_id)

    def _tell_soon(self, method: str, name: str, *arguments: Any) -> None:
        """One call at a time about one thing."""
        running = self._reported.get((method, name))
        if running is None or running.done():
            self._reported[method, name] = asyncio.create_task(self._tell(method, name, *arguments))

    async def _tell(self, method: str, *arguments: Any) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await getattr(self.directory, method).remote(*arguments)
        except Exception as error:  # any failure of Ray: the next call comes
            log.warning("the directory did not answer to %s: %r", method, error)
