"""Metrics of scaling: what operators and autoscalers said of the models that this gateway owns, so that no sum over gateways counts twice."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deployments.cell.announced import Announced


class ScalingMetrics(Collector):
    """Read when Prometheus asks. `owned` names the models."""

    def __init__(self, announced: Announced, owned: Callable[[], Iterable[str]]) -> None:
        self._announced = announced
        self._owned = owned

    def collect(self) -> Iterable[Metric]:
        """The families."""
        owned = frozenset(self._owned())
        return (*self._orders(owned), *self._scaling(owned))

    def _orders(self, owned: frozenset[str]) -> Iterable[Metric]:
        orders = self._announced.orders
        number = GaugeMetricFamily("raylane_control", "Replicas that an operator holds (at least) or pins (exactly).", labels=("model", "kind"))
        until = GaugeMetricFamily("raylane_control_until_seconds", "When that ends, as a Unix time.", labels=("model", "kind"))
        cordoned = GaugeMetricFamily("raylane_cordoned_replicas", "Replicas that an operator keeps new work off.", labels=("model",))
        acts = CounterMetricFamily("raylane_operator_acts", "What operators did, by kind, as the audit has it.", labels=("model", "kind"))
        for model in sorted(owned):
            cordoned.add_metric((model,), len(orders.cordoned(model)))
            for control in self._announced.controls_of(model):
                number.add_metric((model, control.kind.value), control.replicas)
                until.add_metric((model, control.kind.value), control.until_unix_s)
        for model, kind, count in orders.acts:
            if model in owned:
                acts.add_metric((model, kind.value), count)
        return number, until, cordoned, acts

    def _scaling(self, owned: frozenset[str]) -> Iterable[Metric]:
        scaling = self._announced.scaling
        replicas = GaugeMetricFamily("raylane_replicas", "Replicas as their autoscaler sees them.", labels=("model", "state"))
        decided = GaugeMetricFamily("raylane_scaling_decided_seconds", "When it last decided something new, as a Unix time.", labels=("model",))
        decisions = CounterMetricFamily("raylane_scaling_decisions", "Its decisions, by reason.", labels=("model", "reason"))
        alarms = CounterMetricFamily("raylane_scaling_alarms", "What was wrong when it decided, by kind.", labels=("model", "kind"))
        for state in scaling.states:
            if state.model in owned:
                decided.add_metric((state.model,), state.at_unix_s)
                for name in ("requested", "applied", "ready", "starting"):
                    replicas.add_metric((state.model, name), getattr(state, name))
        for family, counts in ((decisions, scaling.decisions), (alarms, scaling.alarms)):
            for model, word, count in counts:
                if model in owned:
                    family.add_metric((model, word), count)
        return replicas, decided, decisions, alarms
