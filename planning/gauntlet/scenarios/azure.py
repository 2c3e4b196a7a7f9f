"""Azure's recorded hours: a chat service, and code completion.

The hours of 2023 (AzurePublicDataset; Splitwise, ISCA 2024) at their recorded times. Policies are tuned on the first
half and judged on the second; a run leaves out a random seventh of the requests. Chat is steady with a slow swell. Code
comes in salvos with quiet minutes between, on an engine half as fast. A good policy holds what the noise needs, and no
more. Nobody can foresee a salvo of code, so the SLO costs idle replicas there.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.recorded import fitted, half, kept, load_of_recorded, recorded, trace_file, workload_of
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT, REASONING, Serving

_CHAT, _CODE = "azure2023_conv.csv.gz", "azure2023_code.csv.gz"
_KEPT = 6 / 7


def _run(draw: Draw, name: str, file: str, serving: Serving, replicas: int, slo_s: tuple[float, float]) -> ScenarioRun:
    whole, until_s = half(recorded(trace_file(draw, file)), draw.training)
    trace = fitted(kept(whole, _KEPT, draw.rng(name)), 1.0, 16_000, 1_500)
    work = workload_of(trace, 2_500 if serving is CHAT else 5_000, slo_s)
    return ScenarioRun(serving, work, load_of_recorded(serving, work, until_s), Bounds(1, 16), replicas, until_s)


def _chat(draw: Draw) -> ScenarioRun:
    return _run(draw, "azure_chat", _CHAT, CHAT, 4, (2.0, 10.0))


def _code(draw: Draw) -> ScenarioRun:
    return _run(draw, "azure_code", _CODE, REASONING, 8, (5.0, 10.0))


SCENARIOS = (
    Scenario("azure_chat", "Azure 2023: an hour of chat", "a recorded day", 0.99, _chat, reads=(_CHAT,), day=True),
    Scenario(
        "azure_code", "Azure 2023: an hour of code completion", "a recorded day", 0.99, _code, reads=(_CODE,), day=True
    ),
)
