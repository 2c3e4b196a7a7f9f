"""What the directory announced last, beside replicas and owners: operators' orders, autoscalers' decisions and departures. Pages, status and metrics
read it."""

import time

from deployments.cell.control import Control
from deployments.cell.departure import Departures
from deployments.cell.listing import Listing
from deployments.cell.orders import Orders
from deployments.cell.scaling_state import Scaling, ScalingState


class Announced:
    """Kept while the directory is away; controls end by themselves all the same."""

    def __init__(self) -> None:
        self.orders = Orders()
        self.scaling = Scaling()
        self.departures = Departures()

    def take(self, listing: Listing) -> None:
        """The directory spoke."""
        self.orders, self.scaling, self.departures = listing.orders, listing.scaling, listing.departures

    def controls_of(self, model: str) -> tuple[Control, ...]:
        """A model's controls in force now."""
        return self.orders.of(model, time.time())

    def scaling_of(self, model: str) -> ScalingState | None:
        """What was decided last on a model."""
        return self.scaling.of(model)

    def ready_at_s(self, model: str) -> float | None:
        """When the model's next replica should be ready, on this process's clock; None: nobody knows of one that starts."""
        state = self.scaling.of(model)
        ready_unix_s = None if state is None else state.ready_unix_s
        return None if ready_unix_s is None else time.monotonic() + ready_unix_s - time.time()
