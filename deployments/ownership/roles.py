"""The two roles around a model's requests: who holds their clients, and who decides on them.

A gateway holds requests at its desk (`desk.py`). It asks the owner: the scheduler in its own process (`lane_owner.py`), or that of another gateway,
over a channel (`remote_owner.py`). A session (`session.py`) is the holder that stands, at the owner, for another gateway.
"""

from typing import Protocol

from deployments.protocol import ReplicaState
from deployments.scheduling import Admission, Ending, Lease, Placement, Request, Suspicion


class Holder(Protocol):
    """Whoever holds requests is told here what was decided on them. None of it may block or raise."""

    def admitted(self, request_id: str, admission: Admission) -> None:
        """The answer to `submit`; also to a refused request for which there is no room any more, and to one that would wait in vain."""

    def placed(self, placement: Placement, url: str) -> None:
        """A request got a lease on the replica that listens at `url`."""

    def expired(self, request_id: str) -> None:
        """A request waited for as long as it may."""

    def moved(self) -> None:
        """The owner decides nothing more."""

    def suspected(self, told: tuple[Suspicion, ...]) -> None:
        """Whose standing as a query of death has changed."""


class Owner(Protocol):
    """Whoever decides. Leases are named by their `engine_id`, which is the same for every owner; what an owner does not know it ignores.

    `epoch` says under which ownership it decides; the engines refuse a lease whose epoch was overtaken.
    """

    epoch: int

    def submit(self, holder: Holder, request: Request, admitted: bool = False) -> None:
        """Takes a request in; the answer comes by `Holder.admitted`. `admitted`: an owner before had taken it in."""

    def cancel(self, request_id: str) -> None:
        """A request that waits is given up."""

    def hold(self, holder: Holder, engine_id: str) -> None:
        """The holder has a lease of an owner before."""

    def first_token(self, engine_id: str) -> None:
        """The first token of a lease is there: its prompt is prefilled."""

    def died(self, engine_id: str) -> None:
        """The replica, or its engine, died while it ran that lease. The lease stands until it is released or refused."""

    def release(self, engine_id: str, ending: Ending) -> None:
        """A lease ended."""

    def refused(self, holder: Holder, lease: Lease, state: ReplicaState | None) -> None:
        """A lease's replica took no work (None: no connection): its request waits again, before all others."""
