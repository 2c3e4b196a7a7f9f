"""Mooncake's tool-agent trace: as recorded, and as a wave with different start-up times.

Source: Dynamo's own replay of this trace failed abruptly when replicas took 100 to 120 s to start. The recording has 17
minutes at an even rate. Policies are tuned on its first half and judged on its second, each repeated end to end, with
prompts, and what they share, at a fifth of their length (they have 15,000 tokens). The sweep thins it to a wave between
a quarter and all of it, with a climb of four minutes, and starts of 0 to 300 s. Policies keep the settings that they
found at 60 s, and know the start-up time. A good policy looks one start-up time ahead.
"""

from functools import partial

import numpy as np

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.recorded import (
    end_to_end,
    fitted,
    half,
    kept,
    load_of_recorded,
    rate_of_recorded,
    recorded,
    trace_file,
    workload_of,
)
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT, STEP_S, LoadCurve
from planning.workload.arrivals import FloatArray
from planning.workload.scaling import load_scaled
from planning.workload.trace import Trace

FILE = "mooncake_synthetic.jsonl.gz"
STARTS_S = (0, 15, 30, 60, 100, 120, 180, 300)
_TUNED_AT_S = 60
_WAVE = ((0, 0.25), (300, 0.25), (540, 1.0), (900, 1.0), (1_100, 0.25), (1_250, 0.25), (1_450, 0.8), (1_600, 0.8))
_TIMES = 3
_COPIES = 1.4
_SLOS = (2_500, (2.0, 10.0))


def _trace(draw: Draw, rng: np.random.Generator) -> tuple[Trace, float]:
    part, length_s = half(recorded(trace_file(draw, FILE)), draw.training)
    busier = load_scaled(part, _COPIES, int(rng.integers(1 << 30)))
    return fitted(end_to_end(busier, length_s, _TIMES, rng.uniform(0, length_s)), 0.2, 16_000, 1_500), _TIMES * length_s


def _recorded(draw: Draw) -> ScenarioRun:
    rng = draw.rng("mooncake")
    trace, until_s = _trace(draw, rng)
    work = workload_of(kept(trace, 6 / 7, rng), *_SLOS)
    return ScenarioRun(CHAT, work, load_of_recorded(CHAT, work, until_s), Bounds(1, 12), 5, until_s)


def _wave(start_up_s: float, draw: Draw) -> ScenarioRun:
    rng = draw.rng("mooncake_wave")
    trace, until_s = _trace(draw, rng)
    work = workload_of(kept(trace, _share, rng), *_SLOS)
    evenly = np.arange(STEP_S / 2, until_s, STEP_S, dtype=np.float64)
    load = LoadCurve(_share(evenly) * len(trace) / until_s / rate_of_recorded(CHAT, work))
    return ScenarioRun(CHAT, work, load, Bounds(1, 12), 2, until_s, start_up_s=(start_up_s,))


def _share(at_s: FloatArray) -> FloatArray:
    share: FloatArray = np.interp(at_s, [at for at, _ in _WAVE], [share for _, share in _WAVE])
    return share


def _swept(start_up_s: int) -> Scenario:
    return Scenario(
        f"start_up_{start_up_s}",
        f"Mooncake's wave, starts of {start_up_s} s",
        "Dynamo's replay: a cliff at 100 to 120 s",
        0.95,
        partial(_wave, float(start_up_s)),
        reads=(FILE,),
        tuned_on=None if start_up_s == _TUNED_AT_S else f"start_up_{_TUNED_AT_S}",
        sweep=("start-up, s", float(start_up_s)),
    )


SCENARIOS = (
    Scenario("mooncake", "Mooncake: a tool agent's trace", "a recorded day", 0.99, _recorded, reads=(FILE,), day=True),
    *(_swept(start_up_s) for start_up_s in STARTS_S),
)
