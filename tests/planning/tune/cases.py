"""A small case for the tests of tuning: an hour or some with a busy middle, on engines of which a few are enough."""

from pathlib import Path

import numpy as np

from cluster.spec import ClusterSpec, parse_spec
from deployments.engine_model.cost_file import CostFile, cost_file
from deployments.engine_model.cost_model import CostModel, line, plain_attention, slowed
from deployments.engine_model.limits import EngineModelLimits
from deployments.telemetry.published_error import AtLoad, Figure, Published
from planning.simulator.workload import Workload, plain_workload
from planning.tune.case import TuningCase, case_of

TEXT = """\
version: 1
name: small
regions:
  - name: here
    pools:
      - {name: gpus, accelerator: L40S, nodes: 8, gpus_per_node: 2, price_usd_per_hour: 2.0}
models:
  - name: demo
    source: demo
    settings: {max_model_len: 8192, max_num_seqs: 16, tensor_parallel_size: 2}
    replicas: {count: 2, min: 2, max: 8}   # never one alone
classes:
  - {name: interactive, ttft_ms: 2000, attainment: 0.98}
autoscaling:
  policy: backlog
  backlog:
    utilisation: 0.7   # a third free
    down_after_s: 900
"""


def spec(text: str = TEXT) -> ClusterSpec:
    return parse_spec(text, "small.yaml", Path("."))


def costs(slower: float = 1.0) -> CostFile:
    model = CostModel(line(0.08, 2e-4), line(0.0, 4e-5), plain_attention(1.2e-7, 4e-10))
    limits = EngineModelLimits(16, 2_048, 60_000)
    return cost_file("demo", "a test", "measured", limits, slowed(model, slower), error=0.05)


def work(span_s: float = 3_600.0, seed: int = 0) -> Workload:
    """A request in two seconds, and five times as many in the middle third: few, for engines that are slow, so that a
    run takes a second."""
    rng = np.random.default_rng(seed)
    parts = [
        rng.uniform(begin * span_s / 3, (begin + 1) * span_s / 3, int(rate * span_s / 3))
        for begin, rate in enumerate((0.5, 2.5, 0.5))
    ]
    arrived = np.sort(np.concatenate(parts))
    prompt, output = (
        np.maximum(1, rng.lognormal(mean, 0.6, len(arrived))).astype(np.int64).clip(1, 2_000) for mean in (5.5, 4.6)
    )
    return plain_workload(arrived, prompt, output, 2.0, bounded=False)


def case(text: str = TEXT, span_s: float = 3_600.0) -> TuningCase:
    found = spec(text)
    return case_of(found, found.models[0], costs(), work(span_s), start_up_s=30.0)


def known_error(ttft: float, capacity: float = 1.0, model: str = "demo", name: str = "ttft/all/p90") -> Published:
    """The simulator's error as a rehearsal published it."""
    figure = Figure(name=name, live_s=1.0, simulated_s=1.0 + ttft, error=ttft, raw_error=ttft, spread=5.0, bound=0.12)
    at = AtLoad(load=0.9, runs=1, slowness=(1.0,), requests=10, failed=0, figures=(figure,))
    rehearsed = {"replicas": 2, "costs": "measured", "measured_at": "2026-11-20T10:00:00"}
    return Published(model=model, **rehearsed, capacity_live=10.0, capacity_simulated=10 * capacity, loads=(at,))
