"""The runs of `scaling.jsonl.gz`: which policy, under which load, with which troubles."""

from dataclasses import dataclass, field

from tests.recorded.scaling_adapter import Plain


@dataclass(frozen=True)
class ScalingRun:
    """One run. `load`: arrivals in replicas' worth at a time of the run. `troubles`: what goes wrong, so many times an
    hour each."""

    name: str
    policy: str
    readings: int = 600
    every_s: float = 5.0
    load: str = "day"
    settings: Plain = field(default_factory=dict)
    bounds: Plain = field(default_factory=dict)
    measured: bool = True
    start_up_s: float = 60.0
    forecast: bool = False
    troubles: float = 0.0


ZERO: Plain = {"min": 0}
RATED: Plain = {"up_per_min": 2.0, "down_per_min": 1.0, "max": 12, "unschedulable_s": 120.0, "retry_s": 60.0}
RIVALS = ("ray_default", "hpa", "knative")
SCALING_RUNS = (
    ScalingRun("backlog, a day", "backlog", 500),
    ScalingRun("backlog, a ramp", "backlog", 1_200, 2.0, load="ramp"),
    ScalingRun("backlog, bursts with rates", "backlog", load="bursts", bounds=RATED),
    ScalingRun("backlog, silence", "backlog", 700, load="silence", bounds=ZERO),
    ScalingRun(
        "backlog, unmeasured, to zero",
        "backlog",
        load="silence",
        bounds=ZERO,
        measured=False,
        settings={"zero_after_s": 120.0, "down_after_s": 60.0},
    ),
    ScalingRun("backlog, a trickle", "backlog", 400, load="trickle"),
    ScalingRun("backlog, forecast", "backlog", forecast=True, start_up_s=180.0),
    ScalingRun(
        "backlog, forecast, troubles",
        "backlog",
        800,
        forecast=True,
        troubles=60.0,
        settings={"period_s": 15.0, "down_after_s": 60.0},
    ),
    ScalingRun(
        "backlog, troubles",
        "backlog",
        1_200,
        bounds=RATED,
        troubles=90.0,
        settings={"short_cost": 50.0, "down_after_s": 60.0},
    ),
    ScalingRun("fixed", "fixed", 300, settings={"replicas": 3}, troubles=90.0),
    *(ScalingRun(f"{name}, a day", name, 240, 10.0, load="day" if name != "knative" else "silence") for name in RIVALS),
    *(ScalingRun(f"{name}, troubles", name, 200, 10.0, load="bursts", bounds=RATED, troubles=60.0) for name in RIVALS),
)
