"""Fair shares by start-time fair queueing: of lanes (lanes.py), and of tenants (lane.py, tenants.py)."""


class FairFlow:
    """One claimant of a share."""

    __slots__ = ("finish", "start", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.start = 0.0
        self.finish = 0.0


class FairClock:
    """The virtual time V of a set of flows that share work by start-time fair queueing.

        start(f)  = max(V, finish(f))      when f becomes backlogged
        finish(f) = start(f) + cost / weight(f)
        V         = start of the request that was served last; the smallest start is served next

    Over any interval in which f and g are both backlogged,  |work(f)/w(f) - work(g)/w(g)| <= C/w(f) + C/w(g)  with C
    the largest cost: shares are right to within one request each, whatever the costs, and no step loops over rounds (as
    deficit round robin does for a large head). Source: Goyal, Vin and Cheng, "Start-time Fair Queuing", SIGCOMM 1996.
    Why not deficit round robin: docs/decisions/0006.
    """

    __slots__ = ("virtual",)

    def __init__(self) -> None:
        self.virtual = 0.0

    def activate(self, flow: FairFlow) -> None:
        """The flow has something to serve again: idleness earns nothing."""
        flow.start = max(self.virtual, flow.finish)

    def charge(self, flow: FairFlow, cost: float) -> None:
        self.virtual = max(self.virtual, flow.start)
        flow.finish = flow.start + cost / flow.weight
        flow.start = flow.finish

    def passed_over(self, flow: FairFlow, largest: float) -> None:
        """The flow was due but could not be served: it keeps its claim, up to one request of the largest cost."""
        flow.start = max(flow.start, self.virtual - largest / flow.weight)
