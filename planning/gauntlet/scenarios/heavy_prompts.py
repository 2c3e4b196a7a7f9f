"""Prompts sixteen times as long at the same rate.

Complaint: Ray-LLM #133. A request counted as one, however long its prompt was. Run: short questions at a constant rate.
For a quarter of an hour each has a document with it, so its prompt is sixteen times as long, and the same number of
requests is several times the work. A good policy scales on work.
"""

from autoscaling.scaler.decision import Bounds
from planning.gauntlet.scenario import Draw, Scenario, ScenarioRun
from planning.gauntlet.serving import CHAT
from planning.gauntlet.traffic import LoadStream, RequestKind, RequestMix, drawn, rate_of
from planning.workload.lengths import LogNormal

UNTIL_S = 1_800.0
QUESTIONS = RequestMix((RequestKind("interactive", 5.0, 1.0, LogNormal(300, 0.5), LogNormal(120, 0.6), 1_000, 800),))
_GONE_S = 1.0
"""Between nothing and all of a stream's rate."""


def _run(draw: Draw) -> ScenarioRun:
    rng = draw.rng("heavy_prompts")
    heavy = QUESTIONS.heavier(16)
    rate = 1.1 * rate_of(CHAT, QUESTIONS) * rng.uniform(0.95, 1.05)
    from_s = rng.uniform(480, 600)
    to_s = from_s + 800
    light, much = rate / rate_of(CHAT, QUESTIONS), rate / rate_of(CHAT, heavy)
    before_and_after = [(0, light), (from_s, light), (from_s + _GONE_S, 0), (to_s, 0), (to_s + _GONE_S, light)]
    between = [(0, 0), (from_s, 0), (from_s + _GONE_S, much), (to_s, much), (to_s + _GONE_S, 0)]
    work, load = drawn(CHAT, [LoadStream(QUESTIONS, before_and_after), LoadStream(heavy, between)], UNTIL_S, rng)
    return ScenarioRun(CHAT, work, load, Bounds(1, 12), 2, UNTIL_S, start_up_s=(30.0,))


SCENARIOS = (Scenario("heavy_prompts", "Prompts sixteen times as long", "Ray-LLM #133", 0.95, _run),)
