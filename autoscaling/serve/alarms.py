"""What is wrong with the scaling of a model, by kinds of a closed set: on /metrics and in `raylane status`. Pure."""

from enum import StrEnum

from autoscaling.scaler.decision import Decision, Limit


class Alarm(StrEnum):
    """Each is told with every decision while it lasts."""

    LAW_FAILED = "law_failed"
    """The law raised; the number stays."""
    STALE = "stale"
    """The owner's books cannot be read, or are too old; the number stays."""
    SILENT = "silent"
    """A replica does not report; nothing is taken away."""
    UNSCHEDULABLE = "unschedulable"
    """More are wanted than there is room for."""
    FOREIGN_WRITE = "foreign_write"
    """Another hand changed the number of replicas."""
    BAD_SPEC = "bad_spec"
    """The spec in force cannot be followed (a cost file is missing, a setting is refused); what was in force before is."""
    NO_LOG = "no_log"
    """The decision log cannot be written."""
    FORECAST_FAILED = "forecast_failed"
    """The forecast that the spec wants failed; nothing is taken away until it is made again, within ten minutes."""
    ROLLED_BACK = "rolled_back"
    """A promoted law burned the SLO and was taken back; the spec does not say so yet."""
    OUT_OF_REACH = "out_of_reach"
    """Promises are missed faster than the SLO allows, and more replicas do not help: `raylane explain` says how the law knows."""


_BY_LIMIT = {
    Limit.LAW_FAILED: Alarm.LAW_FAILED,
    Limit.STALE: Alarm.STALE,
    Limit.SILENT: Alarm.SILENT,
    Limit.UNSCHEDULABLE: Alarm.UNSCHEDULABLE,
}


def alarms_of(decision: Decision, **others: bool) -> tuple[str, ...]:
    """Those of a decision, and the `others` by their names where they hold."""
    told = {_BY_LIMIT.get(decision.limit) if decision.limit is not None else None}
    told |= {Alarm(name) for name, holds in others.items() if holds}
    if decision.concern is not None:
        told.add(Alarm.OUT_OF_REACH)
    if decision.error is not None:
        told.add(Alarm.LAW_FAILED)
    return tuple(alarm.value for alarm in Alarm if alarm in told)
