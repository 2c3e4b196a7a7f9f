"""From the page on which an owner shows its books to signals. Pure; `from_snapshot.py` does the rest, which is the same in the simulator."""

import dataclasses

from autoscaling.signals.from_snapshot import Moment, signals_of
from autoscaling.signals.signals import Forecast, Latencies, Signals
from deployments.scaling.books import Books


def signals_from(books: Books, moment: Moment, forecast: Forecast | None = None, forecast_failed: bool = False) -> Signals:
    """The facts of that moment, `moment.age_s` after the page was read; what the page says of epoch, classes and latencies goes over `moment`."""
    told = books.latencies
    latencies = None if told is None else Latencies(**{one.name: getattr(told, one.name) for one in dataclasses.fields(told)})
    moment = dataclasses.replace(moment, epoch=books.epoch, age_s=books.age_s + moment.age_s)
    return signals_of(books.snapshot, moment, books.attainment, latencies, forecast, forecast_failed)
