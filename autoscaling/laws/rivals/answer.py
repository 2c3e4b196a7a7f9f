"""A rival's number with the reason that fits it: rivals have no words of ours for why."""

from collections.abc import Mapping

from autoscaling.laws.law import Motive, Wanted


def answer(replicas: int, applied: int, before_delays: float, up: Motive, terms: Mapping[str, float]) -> Wanted:
    """`replicas`, where `applied` are told to run and the law's equation alone says `before_delays`; `up` is why it adds some."""
    if replicas > applied:
        motive = up if applied else Motive.WAKE
    elif replicas < applied:
        motive = Motive.CONSOLIDATE if replicas else Motive.IDLE
    else:
        motive = Motive.COOLING if before_delays < applied else Motive.STEADY
    return Wanted(replicas, motive, terms)
