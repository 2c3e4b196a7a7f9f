"""A spec of one scaled model, its setup, and a stream of moments: for the tests of what is around policies."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoscaling.from_spec import ScalingSetup, setup_of
from autoscaling.log import SCALING, log_name
from autoscaling.scaler.autoscaler import Autoscaler
from autoscaling.scaler.decision import ScalingDecision
from autoscaling.signals.signals import Signals
from cluster.spec import ClusterSpec
from deployments.cell.control import Control
from deployments.decision_log import log_files, read_log
from deployments.decisions import Entry, Replay, replay
from deployments.scheduling.snapshot import FlowStats
from tests.autoscaling.facts import lane_like, signals_like
from tests.autoscaling.scaler.moments import replicas


def spec_of(
    policy: str = "backlog",
    count: int = 1,
    minimum: int = 0,
    maximum: int | None = 8,
    schedule: dict[str, Any] | None = None,
    **scaling: Any,
) -> ClusterSpec:
    """One model on a pool of ten H100s."""
    pool = {"name": "h100", "accelerator": "H100", "gpus_per_node": 8, "price_usd_per_hour": 3.0}
    model = {
        "name": "m",
        "source": "somewhere",
        "settings": {"max_model_len": 8192, "max_num_seqs": 32},
        "replicas": {"count": count, "min": minimum, "max": maximum, "schedule": schedule},
    }
    regions, autoscaling = [{"name": "here", "pools": [pool]}], {"policy": policy, **scaling}
    return ClusterSpec.model_validate(
        {"name": "test", "regions": regions, "models": [model], "autoscaling": autoscaling}
    )


def setup(policy: str = "backlog", **given: Any) -> ScalingSetup:
    """That spec's setup."""
    spec = spec_of(policy, **given)
    return setup_of(spec, spec.models[0], spec.regions[0])


def stream(seconds: int, seed: int = 0, applied: int = 2, slo_s: float = 2.0) -> Iterator[Signals]:
    """A moment a second of a system whose load swells and falls, as its counts tell it. Whole nanoseconds, as a shell's
    clock gives them."""
    rng = random.Random(seed)
    arrived = work = finished = done = kept = missed = 0
    for second in range(seconds):
        new = rng.randrange(0, 4 + 10 * (seconds // 3 < second < 2 * seconds // 3))
        arrived, work = arrived + new, work + 3_000 * new
        waiting = rng.randrange(0, 6) if new > 6 else 0
        finished, done = finished + new, done + 3_000 * new
        kept, missed = kept + new - (waiting > 3), missed + (waiting > 3)
        now = ((10**9 * second + 17) / 1e9, 1_700_000_000.0 + second, rng.random() / 100, 1, applied, 0, 10)
        busy = tuple(replace(one, sequences=rng.randrange(0, 33)) for one in replicas(applied))
        lanes = (lane_like("short", waiting, 3_000.0 * waiting, waiting / 7), lane_like("long", 0, 0.0, 0.0))
        flows = (FlowStats("short", "interactive", arrived, float(work), 500 * arrived, kept, missed, slo_s),)
        yield signals_like(*now, busy, lanes, flows, finished, float(done), finished, 200 * finished)


def entries_of(folder: Path, model: str = "m") -> list[Entry]:
    """The log of a model's scaling."""
    return list(read_log(log_files(folder, log_name(model))))


def replayed(log: Iterable[Entry | Path], any_code: bool = False) -> Replay:
    """A log's entries, or its files, decided again."""
    entries = [entry for one in log for entry in (read_log([one]) if isinstance(one, Path) else [one])]
    return replay(entries, (SCALING,), any_code)


class Watched(Autoscaler):
    """Keeps what it was shown and what it decided."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[tuple[Signals, ScalingDecision]] = []

    def decide(self, signals: Signals, controls: tuple[Control, ...] = ()) -> ScalingDecision:
        decision = super().decide(signals, controls)
        self.seen.append((signals, decision))
        return decision
