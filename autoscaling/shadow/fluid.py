"""What a number of replicas would have carried, as a fluid: the model by which a law is scored that was not obeyed. Pure.

    capacity   C = c * r              c: work a second and replica, as the active side learned it; r: replicas ready
    backlog    B <- max(0, B + arrived - C * dt)
    wait       w = B / C              infinite where there is work and no replica
    short      dt, where w is over the tightest promise of what arrives
    paid       n * dt                 n: replicas asked for, those that start with them
    start      a replica asked for is ready S seconds later; one that goes is gone at once, what has not started first, as the platform does it

What it leaves out, on purpose: lanes and their order, the lengths of single requests, KV blocks, batching, drains, and that a short fleet sheds load.
So it compares two laws on the same stream; it does not forecast a latency. The active law goes through the same model, and beside it stands what was
really missed: where these two disagree, trust no comparison.
"""

import math


class FluidFleet:
    """The replicas and the backlog of one law. `short_s`: see above; `paid_s`: replica-seconds."""

    def __init__(self, ready: int, at_s: float) -> None:
        self.ready = ready
        self.short_s = 0.0
        self.paid_s = 0.0
        self.backlog = 0.0
        self._due_s: list[float] = []
        self._at_s = at_s

    @property
    def asked(self) -> int:
        """Replicas that there are or will be."""
        return self.ready + len(self._due_s)

    def pass_time(self, at_s: float, arrived: float, per_replica_s: float, promise_s: float) -> None:
        """Until `at_s` so much work arrived. `per_replica_s`: c above."""
        passed = max(0.0, at_s - self._at_s)
        self._at_s = at_s
        self.ready += sum(due_s <= at_s for due_s in self._due_s)
        self._due_s = [due_s for due_s in self._due_s if due_s > at_s]
        self.paid_s += self.asked * passed
        capacity = per_replica_s * self.ready
        self.backlog = max(0.0, self.backlog + arrived - capacity * passed)
        wait_s = 0.0 if not self.backlog else self.backlog / capacity if capacity else math.inf
        if wait_s > promise_s:
            self.short_s += passed

    def ask(self, number: int, start_up_s: float) -> None:
        """So many are wanted from now on."""
        for _ in range(number - self.asked):
            self._due_s.append(self._at_s + start_up_s)
        for _ in range(self.asked - number):
            if self._due_s:
                self._due_s.pop()
            else:
                self.ready -= 1
