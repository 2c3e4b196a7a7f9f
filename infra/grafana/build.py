"""Writes the two Grafana dashboards beside this file (`python infra/grafana/build.py`), which nobody changes by hand.

A panel has a title, a unit of Grafana's, and queries. `by` names the labels of a query's series, which are its legend,
too; `where` adds to the choice of cell and model. What counts seldom events shows 0 where there were none yet.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WIDTH, HEIGHT, COLUMNS = 8, 7, 24
CHOSEN = 'cell=~"$cell", model=~"$model(@.+)?"'
"""`@` begins the name of a model's group, where it has several."""


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str

    def __truediv__(self, whole: "Query") -> "Query":
        return Query(f"{self.expr} / {whole.expr}", self.legend)


class Panel:
    def __init__(self, title: str, unit: str, *queries: Query, kind: str = "timeseries") -> None:
        self.title, self.unit, self.queries, self.kind = title, unit, queries, kind


def query(form: str, metric: str, by: str, where: str) -> Query:
    """`form` says what becomes of the chosen series (`{0}`), by which labels (`{1}`)."""
    legend = " ".join(f"{{{{{name}}}}}" for name in by.split())
    return Query(form.format(f"{metric}{{{CHOSEN}{where and ', ' + where}}}", ", ".join(by.split())), legend)


def gauge(metric: str, by: str, of: str = "sum") -> Query:
    return query(of + " by ({1}) ({0})", metric, by, "")


def rate(metric: str, by: str, where: str = "") -> Query:
    """What a counter grows by in a second."""
    return query("sum by ({1}) (rate({0}[$__rate_interval]))", metric, by, where)


def hour(metric: str, by: str, where: str = "") -> Query:
    """...and in the last hour."""
    return query("sum by ({1}) (increase({0}[1h]))", metric, by, where)


NEW = "sum by ({1}) (({0} unless {0} offset 1h) or increase({0}[1h]))"
"""Where each gateway counts its own. (`increase` does not see the first event of a series, which begins with it.)"""
_TOLD = "max by (cell, {1}) ({0})"
NEW_IN_CELL = f"sum by ({{1}}) ({_TOLD} - (max by (cell, {{1}}) ({{0}} offset 1h) <= {_TOLD} or 0 * {_TOLD}))"
"""Where one gateway shows what the whole cell has counted; a count that is lower now is a new cell's."""


def seldom(metric: str, by: str, where: str = "", form: str = NEW_IN_CELL) -> Query:
    """...and of the last hour's events, 0 where there were none."""
    found = query(form, metric, by, where)
    return Query(f"{found.expr} or vector(0)", found.legend)


def quantiles(metric: str, by: str) -> tuple[Query, ...]:
    """The median and the p95 of a histogram."""
    counts = rate(metric + "_bucket", "le " + by)
    return tuple(
        Query(f"histogram_quantile({level}, {counts.expr})", counts.legend.replace("{{le}}", name))
        for level, name in ((0.5, "p50"), (0.95, "p95"))
    )


SLO, IN, CACHED = "model class slo", 'kind="in"', 'kind="cached"'
REQUESTS, TARGET, STEP = "raylane_slo_requests_total", "raylane_slo_target_ratio", "raylane_engine_step_seconds"
OF_LANES, OF_TENANTS = "raylane_lane_tokens_total", "raylane_tenant_tokens_total"
MISSES = rate(REQUESTS, SLO, 'result="missed"') / rate(REQUESTS, SLO)
LAG = 'sum by (gateway, le) (rate(raylane_event_loop_lag_seconds_bucket{cell=~"$cell"}[$__rate_interval]))'
STAGES, ANSWERS = rate("raylane_stage_seconds_sum", "stage"), rate("raylane_e2e_seconds_count", "")

SERVICE = (
    Panel(
        "Requests within their SLO, last hour",
        "percentunit",
        hour(REQUESTS, SLO, 'result="met"') / hour(REQUESTS, SLO),
        Query(gauge(TARGET, SLO, "max").expr, "promised: {{model}} {{class}} {{slo}}"),
        kind="stat",
    ),
    Panel("Times the budget that burns", "none", MISSES / Query(f"(1 - {gauge(TARGET, SLO, 'max').expr})", "")),
    Panel("Has a replica", "none", gauge("raylane_model_ready", "model", "max"), kind="stat"),
    Panel("Time to first token", "s", *quantiles("raylane_ttft_seconds", "model")),
    Panel("Time between two pieces of a stream", "s", *quantiles("raylane_itl_seconds", "model")),
    Panel("Whole answers", "s", *quantiles("raylane_e2e_seconds", "model")),
    Panel("Requests/s by outcome", "reqps", rate("raylane_requests_total", "model outcome")),
    Panel("Rejections, last hour", "none", seldom("raylane_rejections_total", "model cause", form=NEW)),
    Panel("Tokens/s", "none", rate("raylane_tokens_total", "model kind")),
    Panel("Seconds of work that wait", "s", gauge("raylane_waiting_seconds", "model lane")),
    Panel("Where a request's time goes", "s", STAGES / Query(f"on () group_left () {ANSWERS.expr}", "")),
    Panel("Round trip to clients", "s", *quantiles("raylane_client_rtt_seconds", "model")),
    Panel(
        "Tenants' prompts in the cache",
        "percentunit",
        rate(OF_TENANTS, "tenant", CACHED) / rate(OF_TENANTS, "tenant", IN),
    ),
    Panel("Tenants' tokens/s", "none", rate(OF_TENANTS, "tenant", 'kind=~"in|out"')),
    Panel(
        "Gateways",
        "s",
        Query(f"histogram_quantile(0.99, {LAG})", "event loop p99 {{gateway}}"),
        Query('min(raylane_directory_age_seconds{cell=~"$cell"})', "the directory's age"),
    ),
)
REPLICAS = (
    Panel("Requests that wait", "none", gauge("raylane_waiting_requests", "model lane")),
    Panel("The oldest wait", "s", gauge("raylane_oldest_wait_seconds", "model lane", "max")),
    Panel("Wait estimate of a new request", "s", gauge("raylane_expected_wait_seconds", "model lane level", "max")),
    Panel(
        "Estimates whose p95 held (0.95 are to)",
        "percentunit",
        rate("raylane_wait_estimates_total", "model", 'held="yes"')
        / rate("raylane_wait_estimates_total", "model", 'held=~"yes|no"'),
    ),
    Panel(
        "Prompts in the cache", "percentunit", rate(OF_LANES, "model lane", CACHED) / rate(OF_LANES, "model lane", IN)
    ),
    Panel("Service rate, booked tokens/s", "none", gauge("raylane_service_tokens_per_second", "model")),
    Panel("Running sequences", "none", gauge("vllm:num_requests_running", "replica")),
    Panel("KV cache in use", "percentunit", gauge("vllm:kv_cache_usage_perc", "replica", "avg")),
    Panel("Step time", "s", *quantiles(STEP, "replica")),
    Panel(
        "Step time / that of the cost file, without drafts",
        "none",
        rate(STEP + "_sum", "replica") / rate("raylane_engine_expected_step_seconds_total", "replica"),
    ),
    Panel(
        "Accepted tokens of a draft",
        "none",
        rate("vllm:spec_decode_num_accepted_tokens_total", "replica")
        / rate("vllm:spec_decode_num_drafts_total", "replica"),
    ),
    Panel("GPU utilisation", "percentunit", gauge("raylane_engine_gpu_utilization_ratio", "replica gpu")),
    Panel("GPU memory in use", "bytes", gauge("raylane_engine_gpu_memory_used_bytes", "replica gpu")),
    Panel("Replicas", "none", gauge("raylane_replicas", "model state")),
    Panel("Scaling decisions, last hour", "none", seldom("raylane_scaling_decisions_total", "model reason")),
    Panel("Scaling alarms, last hour", "none", seldom("raylane_scaling_alarms_total", "model kind")),
    Panel("The last start, by phase", "s", gauge("raylane_last_start_seconds", "model phase")),
    Panel(
        "Failed starts and losses, last hour",
        "none",
        seldom("raylane_failed_starts_total", "model phase"),
        seldom("raylane_departures_total", "model kind cause", 'planned="no"'),
    ),
)
DASHBOARDS = {"service": ("raylane: service", SERVICE), "replicas": ("raylane: lanes, replicas, scaling", REPLICAS)}


def dashboard(name: str) -> dict[str, Any]:
    title, panels = DASHBOARDS[name]
    many = {"type": "query", "datasource": {"uid": "$source"}, "refresh": 2, "multi": True, "includeAll": True}
    info = "label_values(raylane_model_info"
    choices = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {"name": "cell", "query": f"{info}, cell)", "allValue": ".*", **many},
        {"name": "model", "query": f'{info}{{cell=~"$cell"}}, model)', "allValue": ".*", **many},
    ]
    return {
        "uid": f"raylane-{name}",
        "title": title,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": choices},
        "panels": [_panel(number, one) for number, one in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number * WIDTH, COLUMNS)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": {"type": "prometheus", "uid": "$source"},
        "gridPos": {"x": column, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": "ABCD"[at], "expr": one.expr, "legendFormat": one.legend} for at, one in enumerate(panel.queries)
        ],
    }


def text(name: str) -> str:
    """What the file of a dashboard holds."""
    return json.dumps(dashboard(name), indent=1) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (HERE / f"{each}.json").write_text(text(each), encoding="utf-8")
