"""The load loop of Dynamo's planner: one replica more, one less, or as many (the equations are in `dynamo.py`)."""

import math
from dataclasses import dataclass

from autoscaling.signals.signals import Signals
from deployments.engine_model.cost_model import Chunk, CostModel
from deployments.engine_model.limits import EngineModelLimits
from deployments.scheduling import ReplicaStats


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The SLA, and the part of it that may be used up after a step down."""

    ttft_s: float
    itl_s: float
    sensitivity: float


@dataclass(frozen=True, slots=True)
class LoadStep:
    """`change` of the number of replicas, -1 to 1; `refused`: one less would not carry the load. The worst TTFT and ITL
    that are expected now."""

    change: int
    refused: bool
    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True)
class _Load:
    """Of one replica: prompt tokens that are queued, KV tokens and sequences that decode."""

    queued: float
    kv_tokens: float
    decodes: float

    def times(self, factor: float) -> "_Load":
        return _Load(self.queued * factor, self.kv_tokens * factor, self.decodes * factor)


class _Engine:
    """What an engine is expected to take: the planner's model of it."""

    def __init__(self, limits: EngineModelLimits, cost: CostModel, isl: float, osl: float) -> None:
        self._limits, self._cost = limits, cost
        self._isl, self._osl = isl, max(1.0, osl)

    def ttft_s(self, load: _Load) -> float:
        """Until a prompt that comes now, behind what is queued, is prefilled, in steps as large as they may be."""
        tokens, maximum = load.queued + self._isl, self._limits.step_tokens
        full, rest = divmod(tokens, maximum)
        return full * self._step_s(maximum, load) + (self._step_s(rest, load) if rest >= 1 else 0.0)

    def itl_s(self, load: _Load) -> float:
        """A step with one request more, and the usual share of prompts beside it."""
        more = _Load(0.0, load.kv_tokens + self._isl + self._osl / 2, load.decodes + 1)
        return self._step_s(min(load.decodes * self._isl / self._osl, self._limits.step_tokens), more)

    def _step_s(self, prompt_tokens: float, load: _Load) -> float:
        chunks = [Chunk(round(prompt_tokens), 0)] if prompt_tokens >= 1 else []
        decodes = min(round(load.decodes), self._limits.sequences)
        return self._cost.step_s(chunks, decodes, load.kv_tokens, len(chunks)) if chunks or decodes else 0.0


def step_wish(
    settings: LoadSettings, limits: EngineModelLimits, cost: CostModel, signals: Signals, isl: float, osl: float
) -> LoadStep:
    """What the load says, where `isl` and `osl` are the lengths of late. All replicas are ready."""
    replicas = signals.ready_replicas
    if not replicas:
        return LoadStep(0, False, 0.0, 0.0)
    engine = _Engine(limits, cost, isl, osl)
    lanes_share = signals.waiting * isl / len(replicas)
    loads = [_load(replica, lanes_share) for replica in replicas]
    ttfts, itls = [engine.ttft_s(load) for load in loads], [engine.itl_s(load) for load in loads]
    if min(ttfts) > settings.ttft_s or min(itls) > settings.itl_s:
        return LoadStep(1, False, max(ttfts), max(itls))
    if len(loads) == 1:
        return LoadStep(0, False, max(ttfts), max(itls))
    factor = len(loads) / (len(loads) - 1)
    fits = all(_fits(settings, limits, engine, load.times(factor)) for load in loads)
    return LoadStep(-1 if fits else 0, not fits, max(ttfts), max(itls))


def _load(replica: ReplicaStats, lanes_share: float) -> _Load:
    return _Load(replica.prefill_tokens + lanes_share, replica.kv_tokens, replica.sequences)


def _fits(settings: LoadSettings, limits: EngineModelLimits, engine: _Engine, load: _Load) -> bool:
    """Whether a replica that has this much keeps the SLA, with the margin."""
    if load.kv_tokens + load.queued >= limits.kv_tokens:
        return False
    own_s = engine.ttft_s(_Load(0.0, load.kv_tokens, load.decodes))
    budget_s = (settings.ttft_s - own_s) * settings.sensitivity
    if budget_s <= 0 or engine.ttft_s(load) - own_s >= budget_s:
        return False
    crowded = _Load(0.0, load.kv_tokens + load.queued, load.decodes)
    return math.isfinite(own_s) and engine.itl_s(crowded) < settings.itl_s * settings.sensitivity
