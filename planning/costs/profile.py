"""The cost model from a profile of a model's layers, in the tables of LLMServingSim's profiler: times by tokens, by
sequences, of attention by what it reads, and of a mixture's experts by tokens and by the experts that they reach.

A layer's time is added once for each block that has it. Exchanges between GPUs are in no profile of layers: they come
from the link (`interconnect.py`). What the host does between steps comes from `host.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cluster.hardware import Gpu
from deployments.engine_model.cost_file import CostBasis, CostSource
from deployments.engine_model.cost_model import CostModel, Curve, table
from planning.costs.attention_fit import AttentionTable, attention_of
from planning.costs.experts import Mixture
from planning.costs.host import TYPICAL_HOST, Host
from planning.costs.interconnect import Interconnect, layers_s
from planning.costs.provenance import BUSY_TOKENS, sources_of
from planning.fit.memory import Parallel

Points = Sequence[tuple[int, float]]
"""Tokens or sequences, and microseconds."""

_TWICE = ("layernorm",)
_ONCE_A_STEP = ("embedding", "final_layernorm")
_IN_BLOCKS = frozenset({"qkv_proj", "rotary_emb", "o_proj", "qk_norm", *_TWICE})
_FEED_FORWARD = frozenset({"gate_up_proj", "up_proj", "gate_proj", "act_fn", "down_proj"})
"""Of blocks without experts; a block with experts has them in its own table."""
_PER_SEQUENCE = frozenset({"lm_head", "sampler"})


@dataclass(frozen=True, slots=True)
class Profile:
    """The tables of one model on one GPU, in microseconds.

    `dense`: by layer, (tokens, time). `per_sequence`: by layer, (sequences, time). `attention`: (prefill chunk, its
    past tokens, decodes, KV tokens of each, time) of one block. `moe`: (tokens, experts that they reach, time) of one
    block on one GPU with whole experts.
    """

    dense: Mapping[str, Points]
    per_sequence: Mapping[str, Points]
    attention: Sequence[tuple[int, int, int, int, float]]
    moe: Sequence[tuple[int, int, float]] = ()


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """What of a model a profile does not say: blocks without experts and with them, and for exchanges between GPUs the
    hidden size and the vocabulary."""

    dense: int
    mixtures: int = 0
    mixture: Mixture | None = None
    hidden: int = 0
    vocabulary: int = 0

    @property
    def blocks(self) -> int:
        return self.dense + self.mixtures


@dataclass(frozen=True, slots=True)
class Costs:
    """A cost model, what it leaves out or guesses (each in a sentence), and what its parts rest on."""

    model: CostModel
    notes: tuple[str, ...] = ()
    sources: tuple[CostSource, ...] = ()


def from_profile(
    profile: Profile,
    layers: ModelLayers,
    parallel: Parallel | None = None,
    gpu: Gpu | None = None,
    host: Host = TYPICAL_HOST,
    basis: CostBasis = CostBasis.PROFILE,
) -> Costs:
    """The cost model of a model with these layers. `parallel`: how the profiled engine is split (the tables are of one
    GPU's part); `gpu` has the link between its GPUs; `basis`: whether this GPU was profiled, or another. Raises
    ValueError that names a table that is missing."""
    parallel = parallel or Parallel()
    if parallel.gpus > 1 and (gpu is None or not layers.hidden):
        raise ValueError(f"{parallel.gpus} GPUs exchange data: needed: the GPU's link and the model's hidden size")
    _check(profile, layers)
    link = Interconnect(gpu) if gpu is not None and parallel.gpus > 1 else None
    counts, notes = _times_a_step(profile, layers)
    curves = {name: table([(float(x), y) for x, y in points]) for name, points in profile.dense.items()}
    knots = sorted({float(tokens) for points in profile.dense.values() for tokens, _ in points})
    experts = _Experts(profile.moe, layers.mixture, parallel) if layers.mixtures and layers.mixture else None

    def step_s(tokens: float) -> float:
        share = max(1.0, tokens / parallel.pipeline)
        seconds = host.step_s + 1e-6 * sum(count * curves[name](share) for name, count in counts.items())
        if experts is not None:
            seconds += layers.mixtures * experts.seconds(share)
        return seconds + exchange_s(share)

    def exchange_s(tokens: float) -> float:
        return layers_s(link, parallel, layers.hidden, tokens, layers.dense, layers.mixtures) if link else 0.0

    dense = Curve(tuple(knots), tuple(step_s(knot) for knot in knots))
    attention = attention_of(AttentionTable.of(profile.attention), 1e-6 * layers.blocks, host.block_s * layers.blocks)
    if parallel.pipeline > 1:
        notes.append("pipeline parallelism: stages are taken to be full, one prompt alone takes longer")
    sampled = _sampled(profile, layers, parallel, link)
    model = CostModel(dense, sampled, attention, host.front, host.back_s, ranks=parallel.data)
    busy_s = exchange_s(BUSY_TOKENS / parallel.pipeline)
    return Costs(model, tuple(notes), sources_of(model, basis, host, layers.blocks, link, busy_s))


def _check(profile: Profile, layers: ModelLayers) -> None:
    for name, rows in (("dense", profile.dense), ("per_sequence", profile.per_sequence)):
        if not rows:
            raise ValueError(f"the profile has no {name} table; allowed: times by layer")
    if layers.mixtures and not (profile.moe and layers.mixture):
        raise ValueError(f"{layers.mixtures} blocks have experts, the profile has no moe table; allowed: one with rows")
    if "qkv_proj" not in profile.dense:
        raise ValueError(f"the profile has no layer qkv_proj; found: {', '.join(profile.dense)}")
    if layers.dense and not _FEED_FORWARD & profile.dense.keys():
        raise ValueError(
            f"{layers.dense} blocks have no experts, the profile has no feed-forward layer; allowed: "
            f"{', '.join(sorted(_FEED_FORWARD))}"
        )


def _times_a_step(profile: Profile, layers: ModelLayers) -> tuple[dict[str, int], list[str]]:
    """How often each layer of the dense table is in a step, and what was not known."""
    counts, notes = {}, []
    for name in profile.dense:
        if name in _ONCE_A_STEP:
            counts[name] = 1
        elif name in _FEED_FORWARD:
            counts[name] = layers.dense
        else:
            counts[name] = layers.blocks * (2 if name in _TWICE else 1)
            if name not in _IN_BLOCKS:
                notes.append(f"layer {name!r} of the profile is not known: counted once in each of its blocks")
    missing = sorted((_IN_BLOCKS - {"qk_norm"} | set(_ONCE_A_STEP)) - profile.dense.keys())
    if missing:
        notes.append(f"the profile lacks {', '.join(missing)}: their time is not counted")
    notes += [
        f"layer {name!r} of the profile is not known: counted once a step"
        for name in profile.per_sequence
        if name not in _PER_SEQUENCE
    ]
    if profile.moe and not layers.mixtures:
        notes.append("the profile has a table of experts, the model has none: it is not used")
    return counts, notes


def _sampled(profile: Profile, layers: ModelLayers, parallel: Parallel, link: Interconnect | None) -> Curve:
    """By the sequences that a step samples for. Tensor parallelism gathers their logits."""
    samplers = [table([(float(x), y) for x, y in points]) for points in profile.per_sequence.values()]
    counts = sorted({float(count) for points in profile.per_sequence.values() for count, _ in points})

    def seconds(count: float) -> float:
        kernels = 1e-6 * sum(curve(count) for curve in samplers)
        if link is None:
            return kernels
        return kernels + link.exchange_s("all_gather", parallel.tensor, 2 * count * layers.vocabulary)

    return Curve(tuple(counts), tuple(seconds(count) for count in counts))


class _Experts:
    """The experts of one block by the tokens of a step: linear between the table's rows of tokens, and in each row
    between the experts that they reach."""

    def __init__(self, rows: Sequence[tuple[int, int, float]], mixture: Mixture, parallel: Parallel) -> None:
        self._mixture, self._parallel = mixture, parallel
        by_tokens: dict[int, list[tuple[float, float]]] = {}
        for tokens, experts, us in rows:
            by_tokens.setdefault(tokens, []).append((float(experts), 1e-6 * us))
        self._at = np.array(sorted(by_tokens), dtype=np.float64)
        ordered = (sorted(by_tokens[int(at)]) for at in self._at)
        self._rows = [tuple(np.array(each) for each in zip(*points, strict=True)) for points in ordered]
        self._floor_s = min(float(seconds.min()) for _, seconds in self._rows)

    def seconds(self, tokens: float) -> float:
        """With whole experts on several GPUs, the fullest of them; with slices of each, a share of what is above the
        least time that a kernel takes."""
        ranks, slices = self._parallel.expert_ranks, self._parallel.expert_slices
        tokens *= self._parallel.data
        reached = self._mixture.distinct(tokens) / ranks
        local = self._mixture.fullest(tokens, ranks)
        times = [float(np.interp(reached, experts, seconds)) for experts, seconds in self._rows]
        whole_s = float(np.interp(local, self._at, times))
        if local > self._at[-1]:
            whole_s *= local / float(self._at[-1])
        return self._floor_s + (whole_s - self._floor_s) / slices if slices > 1 else whole_s
