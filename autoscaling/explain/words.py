"""The reasons in plain words. One sentence for every motive and every limit: a new one cannot be forgotten (the tests count them)."""

from collections.abc import Mapping

from autoscaling.laws.law import Concern, Motive
from autoscaling.scaler.bounds import Bounds
from autoscaling.scaler.decision import Decision, Limit

_MOTIVES: Mapping[Motive, str] = {
    Motive.STEADY: "as many as there are carry the load",
    Motive.BACKLOG: "what waits would miss its target",
    Motive.DEMAND: "what arrives needs so many",
    Motive.FORECAST: "what is expected to arrive, by the time that a replica takes to start, needs so many",
    Motive.OCCUPANCY: "sequences or KV blocks are nearly full",
    Motive.LATENCY: "measured latencies are over their bound, or well under it",
    Motive.SLO_BURN: "promises are being missed faster than the SLO allows",
    Motive.WAKE: "something arrived, and there was no replica",
    Motive.CONSOLIDATE: "for long enough, fewer have carried the busiest moment",
    Motive.IDLE: "nothing has come for long enough, so none is needed",
    Motive.COOLING: "fewer would do, but not for long enough yet",
    Motive.LULL: "next to nothing comes of what usually does, and it may come back at once, so no more than half goes, and then none for a while",
    Motive.NO_ROOM: "fewer would do on average, but one less would not carry the load",
    Motive.SCHEDULE: "the number was known beforehand",
}

_CONCERNS: Mapping[Concern, str] = {
    Concern.NOTHING_WAITS: "promises are missed faster than the SLO allows, but hardly anything waits for a replica, so more would not help",
    Concern.HELPED_NOTHING: "promises are missed faster than the SLO allows, and the last replica that was added for that helped nothing",
}


def words(decision: Decision, bounds: Bounds) -> str:
    """Why that number, in a sentence without its full stop."""
    told = _reason(decision, bounds)
    return told if decision.concern is None else f"{told}; {_CONCERNS[decision.concern]}"


def _reason(decision: Decision, bounds: Bounds) -> str:
    motive = "" if decision.motive is None else _MOTIVES[decision.motive]
    if decision.limit is None:
        return motive
    wanted = f"the law wanted {decision.wanted} ({motive})" if decision.wanted is not None else "the law was not asked"
    return f"{wanted}; {_limit(decision, bounds)}"


def _limit(decision: Decision, bounds: Bounds) -> str:
    match decision.limit:
        case Limit.MIN_REPLICAS:
            return f"replicas.min is {bounds.least}"
        case Limit.MAX_REPLICAS:
            return f"replicas.max is {bounds.most}"
        case Limit.COST_CEILING:
            return f"autoscaling.usd_per_hour pays for {bounds.ceiling}"
        case Limit.UNSCHEDULABLE:
            return f"there is room for {decision.requested}: no GPU, quota or node for more"
        case Limit.UP_RATE:
            return f"autoscaling.up_per_minute allows {bounds.up_per_min:g} more in a minute"
        case Limit.DOWN_RATE:
            return f"autoscaling.down_per_minute allows {bounds.down_per_min:g} fewer in a minute"
        case Limit.HELD:
            return f"an operator holds at least {decision.requested}"
        case Limit.PINNED:
            return f"an operator pinned {decision.requested}"
        case Limit.STALE:
            return "nobody could read the owner's books, or they were too old, so the number stayed"
        case Limit.SILENT:
            return "a replica did not report, so nothing was taken away"
        case Limit.FORECAST_FAILED:
            return "the forecast failed, so nothing was taken away"
        case Limit.LAW_FAILED:
            return f"the law failed ({decision.error}), so the number stayed"
        case None:
            return ""
