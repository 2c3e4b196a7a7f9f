"""The cost model from a GPU's data sheet and a model's architecture, where nothing was measured.

Each matrix of each layer is a product over the step's tokens; a mixture reads the experts that the tokens reach
(`experts.py`). What kernels reach of a data sheet's figures, and how it was found, is in `kernels.py`; exchanges
between GPUs are in `interconnect.py`, the host's part in `host.py`. The bytes of weights and of the KV cache are those
of `planning/fit`.
"""

from collections import Counter
from math import ceil

from deployments.engine_model.cost_file import CostBasis
from deployments.engine_model.cost_model import TILE, Attention, CostModel, Curve, OneKernel, Surface, line
from planning.costs import kernels
from planning.costs.experts import Mixture
from planning.costs.host import TYPICAL_HOST, Host
from planning.costs.interconnect import Interconnect, layers_s
from planning.costs.kernels import Roof
from planning.costs.profile import Costs, ModelLayers
from planning.costs.provenance import BUSY_TOKENS, sources_of
from planning.fit.architecture import Architecture, Layer, Matrix
from planning.fit.memory import Plan

_KNOTS = tuple(sorted({1.0, *(float(round(2 ** (step / 4))) for step in range(61))}))
"""Tokens of a step: to 32,768, four in a doubling."""
_FUSED = {"k_proj", "v_proj", "up_proj"}
"""Matrices that vLLM multiplies together with the one before."""
_ROUTING_KERNELS = 4
_NORM_BYTES = 8
"""Of a token, where GPUs sum what queries and keys are normalized by."""
_NORMS_ELEMENTS = 8
"""Of the hidden size, moved by a layer's two norms: stream and residual, in and out."""
LONG_WINDOW = 4_096
"""Tokens; of a longer sliding window, what decodes read grows with the KV cache like that of other layers."""


def layers_of(model: Architecture) -> ModelLayers:
    """What a profile needs to know of a model."""
    mixtures = [layer for layer in model.layers if layer.experts_a_token]
    return ModelLayers(
        len(model.layers) - len(mixtures),
        len(mixtures),
        _mixture(mixtures[0]) if mixtures else None,
        model.hidden,
        model.vocabulary,
    )


def roofline(plan: Plan, host: Host = TYPICAL_HOST) -> Costs:
    """The cost model of that engine. With data parallelism a step's exchanges and experts are those of ranks that have
    as many tokens as the fullest."""
    model, parallel = plan.model, plan.parallel
    is_nvfp4 = plan.quantization is not None and plan.quantization.method == "modelopt_fp4"
    roof = Roof(plan.gpu, _flops(plan), kernels.NVFP4_MEMORY if is_nvfp4 else kernels.MEMORY)
    link = Interconnect(plan.gpu) if parallel.gpus > 1 else None
    layers = Counter(_Part(plan, index) for index in range(len(model.layers)))
    kinds, notes = layers_of(model), []

    def step_s(tokens: float) -> float:
        share = max(1.0, tokens / parallel.pipeline)
        seconds = host.step_s + sum(count * part.seconds(share, roof) for part, count in layers.items())
        return seconds + exchange_s(share)

    def exchange_s(tokens: float) -> float:
        if link is None:
            return 0.0
        norms_s = link.exchange_s("all_reduce", parallel.tensor, _NORM_BYTES * tokens) if model.sums_norms else 0.0
        layers = layers_s(link, parallel, model.hidden, tokens, kinds.dense, kinds.mixtures, plan.element)
        return layers + len(model.layers) * norms_s

    if parallel.pipeline > 1:
        notes.append("pipeline parallelism: stages are taken to be full, one prompt alone takes longer")
    if any(layer.window for layer in model.layers):
        notes.append("sliding windows: what decodes read is approximated")
    if kinds.mixtures:
        notes.append("experts: evenly drawn by independent tokens")
    dense = Curve(_KNOTS, tuple(step_s(knot) for knot in _KNOTS))
    attention = _attention(plan, host.block_s * len(model.layers))
    sampled = _sampled(plan, roof, link)
    cost = CostModel(dense, sampled, attention, host.front, host.back_s, ranks=parallel.data)
    busy_s = exchange_s(BUSY_TOKENS / parallel.pipeline)
    consumer = plan.gpu.title.startswith("GeForce")
    sources = sources_of(cost, CostBasis.DATA_SHEET, host, len(model.layers), link, busy_s, consumer)
    return Costs(cost, tuple(notes), sources)


class _Part:
    """A layer on one GPU, and the time of its products; equal for equal layers."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._layer = plan.model.layers[index]
        self._hidden, self._element, self._parallel = plan.model.hidden, plan.element, plan.parallel
        prefix = f"model.layers.{index}."
        self._prefix, self._quantization = prefix, plan.quantization
        self._bytes = tuple(plan.weight_bytes(prefix + matrix.name, matrix) for matrix in self._layer.matrices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Part) and (self._layer, self._bytes) == (other._layer, other._bytes)

    def __hash__(self) -> int:
        return hash((self._layer, self._bytes))

    def seconds(self, tokens: float, roof: Roof) -> float:
        seconds = 0.0
        for matrix, size in zip(self._layer.matrices, self._bytes, strict=True):
            if matrix.name.endswith(".absorbed"):
                continue  # a copy of `kv_b_proj`, used in its place
            if matrix.of_experts:
                seconds += self._experts_s(matrix, size, tokens, roof)
            else:
                weights = matrix.inputs * matrix.outputs / self._split(matrix)
                seconds += roof.matrix_s(tokens, size, weights, self._moved(matrix, tokens))
            if matrix.name.rpartition(".")[2] not in _FUSED:
                seconds += kernels.LAUNCH_S + self._quantize_s(matrix)
        return seconds + self._element_wise_s(tokens, roof)

    def _quantize_s(self, matrix: Matrix) -> float:
        """Of the inputs of a product that is computed in less than 16 bits."""
        found = self._quantization
        if found is None or not found.covers(self._prefix + matrix.name):
            return 0.0
        return kernels.QUANTIZE_S if found.block or found.method in _GROUPED else 0.0

    def _split(self, matrix: Matrix) -> int:
        return 1 if matrix.split == "none" else self._parallel.tensor

    def _moved(self, matrix: Matrix, tokens: float) -> float:
        outputs = matrix.outputs / (self._split(matrix) if matrix.split != "inputs" else 1)
        inputs = matrix.inputs / (self._split(matrix) if matrix.split == "inputs" else 1)
        return self._element * tokens * (inputs + outputs)

    def _experts_s(self, matrix: Matrix, size: float, tokens: float, roof: Roof) -> float:
        """`size`: of all experts' parts on one GPU, whether whole experts or slices of each."""
        mixture, ranks = _mixture(self._layer), self._parallel.expert_ranks
        tokens *= self._parallel.data
        reached = mixture.distinct(tokens)
        share = self._parallel.expert_gpus
        local = mixture.fullest(tokens, ranks) * mixture.a_token / (share if ranks == 1 else 1)
        each = matrix.inputs * matrix.outputs
        rows = local * (share if ranks == 1 else ranks) / reached
        weights = each * reached / share
        moved = self._element * local * (matrix.inputs + matrix.outputs)
        read = size * reached / matrix.count
        return roof.experts_s(rows, read, weights, moved)

    def _element_wise_s(self, tokens: float, roof: Roof) -> float:
        layer, tensor = self._layer, self._parallel.tensor
        wide = layer.width + layer.experts_a_token * layer.expert_width
        attention = sum(matrix.outputs for matrix in layer.matrices if matrix.name.startswith("self_attn"))
        elements = _NORMS_ELEMENTS * self._hidden + (3 * wide + 2 * attention) / tensor
        count = 5 + (_ROUTING_KERNELS if layer.experts_a_token else 0)
        return count * kernels.SMALL_KERNEL_S + roof.move_s(self._element * tokens * elements)


def _mixture(layer: Layer) -> Mixture:
    count = next(matrix.count for matrix in layer.matrices if matrix.of_experts)
    return Mixture(count, min(count, layer.experts_a_token))


_GROUPED = ("modelopt_fp4",)
"""Quantizations whose activations get scales while the engine runs, beside those in blocks."""
_WEIGHTS_ONLY = ("awq", "experts_int8", "gptq", "mxfp4")
"""Quantizations whose products are computed in 16 bits."""


def _flops(plan: Plan) -> float:
    """Of the precision that products are computed in: that of quantized weights where the GPU has units for it."""
    gpu, quantization = plan.gpu, plan.quantization
    if quantization is not None and quantization.method == "mxfp4" and gpu.capability >= kernels.BLACKWELL:
        return gpu.fp8_flops or gpu.bf16_flops  # activations of 8 bits, weights of 4
    if quantization is None or quantization.method in _WEIGHTS_ONLY:
        return gpu.bf16_flops
    units = {8: gpu.fp8_flops, 4: gpu.fp4_flops if quantization.method == "modelopt_fp4" else None}
    return units.get(quantization.bits) or gpu.bf16_flops


def _sampled(plan: Plan, roof: Roof, link: Interconnect | None) -> Curve:
    """The product with the vocabulary, and the sampler, which passes over the logits some five times."""
    model, tensor = plan.model, plan.parallel.tensor
    words = ceil(model.vocabulary / tensor)

    def seconds(count: float) -> float:
        moved = plan.element * count * (model.hidden + words)
        head = kernels.LAUNCH_S + roof.matrix_s(count, words * model.hidden * plan.element, words * model.hidden, moved)
        gathered = link.exchange_s("all_gather", tensor, 2 * count * model.vocabulary) if link else 0.0
        return head + gathered + 10 * kernels.SMALL_KERNEL_S + roof.move_s(20.0 * count * model.vocabulary)

    counts = tuple(knot for knot in _KNOTS if knot <= 2_048)
    return Curve(counts, tuple(seconds(count) for count in counts))


def _attention(plan: Plan, prefilling_s: float) -> Attention:
    model, gpu, tensor = plan.model, plan.gpu, plan.parallel.tensor
    is_slow = plan.kv_element == 1 and gpu.capability == kernels.HOPPER
    share = kernels.HOPPER_FP8_KV_MEMORY if is_slow else kernels.KV_MEMORY
    bandwidth = share * gpu.memory_bytes_per_s
    token_s = (model.kv_elements(tensor) * plan.kv_element + model.latent_bytes) / bandwidth
    short = [layer.window for layer in model.layers if layer.window and layer.window < LONG_WINDOW]
    blocks, growing = len(model.layers), len(model.layers) - len(short)
    rate = kernels.PAIRS * gpu.bf16_flops * tensor
    pair_flops = 2 * sum(
        matrix.outputs if matrix.split == "outputs" else matrix.inputs
        for matrix in model.layers[0].matrices
        if matrix.name.rpartition(".")[2] in ("q_proj", "q_b_proj", "o_proj")
    )
    pair_s = pair_flops / rate
    rows = kernels.TILE_ROWS / (model.heads // model.kv_heads if gpu.capability == kernels.HOPPER else 1)
    beside_s = max(token_s, rows * pair_s)
    windows_s = sum(short) * token_s
    decode = line(blocks * kernels.DECODE_LAUNCH_S, blocks * kernels.DECODE_EACH_S + windows_s)
    sizes = tuple(float(2**step) for step in range(4, 16))
    kernel = OneKernel(
        blocks * kernels.PROMPT_LAUNCH_S + prefilling_s,
        Curve((0.0, *sizes), (0.0, *(blocks * _prompt_s(size, pair_s) for size in sizes))),
        Curve(sizes, tuple(growing * max(kernels.CHAIN_S, pair_s * size) for size in sizes)),
        growing * pair_s,
        growing * kernels.CHAIN_S,
        0.0,
        Surface((0.0, 1.0), (0.0, 1.0), ((0.0, 0.0), (windows_s, windows_s + growing * beside_s))),
    )
    return Attention(decode, line(0.0, 0.0), growing * token_s, 0.0, 0.0, 0.0, 0.0, 0.0, kernel)


def _prompt_s(size: float, pair_s: float) -> float:
    return pair_s * max(size, TILE) * size / 2 + kernels.CHAIN_S * size / 2
