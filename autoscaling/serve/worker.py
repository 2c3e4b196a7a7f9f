"""The thread that runs one model's scaling turns as long as its policy lives. It knows the policy's handover, never the
policy itself."""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from autoscaling.log import log_name
from autoscaling.serve.cell import CellClient
from autoscaling.serve.facts import ModelFacts
from autoscaling.serve.handover import Handover
from autoscaling.serve.live_forecaster import forecaster_of
from autoscaling.serve.scaling import ModelScaling
from deployments.engine.zones import spread_over_zones

log = logging.getLogger("raylane.scaling")

_FIRST_TICK_S = 0.05
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class ScalingTask:
    """`spec_json`: empty in a deployed cell, whose gateways tell the directory the spec. `model`: a
    `Model.group_key`."""

    spec_json: str
    model: str
    region: str
    run_dir: str
    estimate: str = ""


def start_worker(task: ScalingTask, handover: Handover, stop: threading.Event) -> threading.Thread:
    """A daemon thread, running until `stop`. Serve spreads over zones from then on, before it starts a replica."""
    spread_over_zones()
    thread = threading.Thread(
        target=_work, args=(task, handover, stop), name=f"raylane-{log_name(task.model)}", daemon=True
    )
    thread.start()
    return thread


def _work(task: ScalingTask, handover: Handover, stop: threading.Event) -> None:
    while handover.applied is None and not stop.wait(_FIRST_TICK_S):
        pass  # an earlier policy of the same model may still be ending, and Serve has not said how many run
    while not stop.is_set():
        try:
            cell = CellClient(task.model)
            spec_json = task.spec_json or _spec_in_force(cell, stop)
            if spec_json is None:
                return
            facts = ModelFacts(spec_json, task.model, task.region, task.estimate)
            folder = Path(task.run_dir).expanduser() / "logs"
            folder.mkdir(parents=True, exist_ok=True)
            scaling = ModelScaling(facts, cell, handover, folder, forecaster_of(facts, folder))
        except Exception:  # the number of replicas stays, and the reason is in the controller's log
            log.exception("model %s cannot be scaled", task.model)
            stop.wait(_RETRY_S)
            continue
        _turn(scaling, task.model, stop)
        scaling.close()


def _spec_in_force(cell: CellClient, stop: threading.Event) -> str | None:
    """The directory's spec, as soon as it has one; None: it has to stop before."""
    while not stop.is_set():
        cell.look()
        if cell.listing is not None and cell.listing.spec_json is not None:
            return cell.listing.spec_json
        stop.wait(_FIRST_TICK_S)
    return None


def _turn(scaling: ModelScaling, model: str, stop: threading.Event) -> None:
    due_s, failed = time.monotonic(), 0
    while not stop.is_set():
        try:
            scaling.turn()
            failed = 0
        except Exception:  # whatever it is, the next turn comes, and the number stays
            failed += 1
            if failed in (1, 10, 100, 1000):
                log.exception("a turn of model %s's scaling failed, %d in a row", model, failed)
        due_s = max(due_s + scaling.turn_s, time.monotonic())
        stop.wait(due_s - time.monotonic())
