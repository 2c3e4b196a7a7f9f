"""Whether a cost file is of the engine that a spec describes: the limits that are simulated, and what the file knows
nothing about. Pure."""

import re
from dataclasses import replace

from cluster.spec import Model, Pool
from deployments.engine_model.cost_file import CostFile
from deployments.engine_model.cost_model import CostModel, slowed
from deployments.engine_model.limits import EngineModelLimits, Speculation

_BOUNDED = ("max_num_seqs", "max_num_batched_tokens")


def limits_for(model: Model, pool: Pool, file: CostFile) -> EngineModelLimits:
    """The engine's limits as the spec sets them, as far as its costs are known: never more than the file's engine had.
    The KV cache is the file's."""
    return _limits(model, pool.accelerator != "cpu" or file.of_gpu, file)


def cost_of(model: Model, file: CostFile) -> CostModel:
    """The step costs of the model's replicas: those of the file, at the speed of a simulated engine."""
    cost, simulated = file.cost_model(), model.simulated
    return cost if simulated is None or simulated.speed == 1.0 else slowed(cost, 1.0 / simulated.speed)


def simulated_limits(model: Model, file: CostFile) -> EngineModelLimits:
    """Those of a simulated engine: whether it is on a GPU, its costs tell, and not the machine that it runs on."""
    return _limits(model, file.of_gpu, file)


def _limits(model: Model, gpu: bool, file: CostFile) -> EngineModelLimits:
    settings, engine = model.settings, file.engine
    sequences, step_tokens = (min(getattr(settings, key), getattr(engine, key)) for key in _BOUNDED)
    step_tokens = max(sequences, step_tokens)
    long_prefill = _number(settings.extra.get("long_prefill_token_threshold"))
    if engine.data_ranks > 1:
        long_prefill = min(long_prefill or step_tokens, step_tokens)
    return replace(
        file.limits(),
        sequences=engine.data_ranks * sequences,
        step_tokens=engine.data_ranks * step_tokens,
        prefix_caching=settings.prefix_caching,
        async_scheduling=async_scheduling(model, gpu),
        long_prefill_tokens=long_prefill,
        chunked_prefill=settings.chunked_prefill,
        speculation=speculation_of(model, file),
    )


def speculation_of(model: Model, file: CostFile) -> Speculation | None:
    """The spec's speculative decoding, as far as the file has measured the same method; None: without, or unknown."""
    desired, measured = model.settings.speculative, file.speculation
    if desired is None or measured is None or measured.method != desired.method:
        return None
    tokens = min(desired.num_speculative_tokens, len(measured.acceptance))
    return Speculation(measured.acceptance[:tokens], 0 if desired.method == "ngram" else tokens)


def _number(value: object) -> int:
    """An engine argument of the spec, which vLLM checks when it starts; 0 where it is none."""
    return value if isinstance(value, int) and value > 0 else 0


def async_scheduling(model: Model, gpu: bool) -> bool:
    """Whether the engine schedules asynchronously, by vLLM's rules (0.32: `config/vllm.py`, `platforms/cpu.py`): never
    on a CPU; else as `settings.extra` says; else unless the model only embeds, or speculates by n-grams."""
    settings, given = model.settings, model.settings.extra.get("async_scheduling")
    if not gpu or isinstance(given, bool):
        return gpu and bool(given)
    return model.task == "generate" and (settings.speculative is None or settings.speculative.method != "ngram")


def misfits(model: Model, pool: Pool, file: CostFile) -> tuple[str, ...]:
    """Where the file is of another engine than the spec's: what it is of, what the spec says, and what was simulated.

    What was measured was measured on the deployment itself: it names no accelerator.
    """
    found = []
    if file.model != model.name:
        found.append(
            f"the costs are of model {file.model!r}, not of {model.name!r}: their times are simulated all the same"
        )
    if (
        file.basis != "measured"
        and pool.accelerator != "cpu"
        and not names_accelerator(file.hardware, pool.accelerator)
    ):
        found.append(
            f"the costs are of {file.hardware}, pool {pool.name!r} has {pool.accelerator}: their times are simulated "
            "all the same"
        )
    for key in _BOUNDED:
        desired, known = getattr(model.settings, key), getattr(file.engine, key)
        if desired > known:
            found.append(
                f"models.{model.name}.settings.{key} = {desired}: the costs are known up to {known}, which is what was "
                "simulated"
            )
    copies, ranks = model.settings.data_parallel_size, file.engine.data_ranks
    if copies != ranks:
        found.append(
            f"models.{model.name}.settings.data_parallel_size = {copies}: the costs are of {ranks} data-parallel "
            f"rank{'s' if ranks > 1 else ''}, which is what was simulated"
        )
    speculative, measured = model.settings.speculative, speculation_of(model, file)
    if speculative and measured and speculative.num_speculative_tokens > len(measured.acceptance):
        found.append(
            f"models.{model.name}.settings.speculative.num_speculative_tokens = {speculative.num_speculative_tokens}: "
            f"acceptance is known of {len(measured.acceptance)} tokens, which is what was simulated"
        )
    if model.settings.max_model_len > file.engine.kv_tokens:
        reported = f"models.{model.name}.settings.max_model_len = {model.settings.max_model_len}"
        found.append(
            f"{reported}: the costs are of an engine with {file.engine.kv_tokens} KV tokens, which no longer request "
            "fits into"
        )
    return tuple(found)


def names_accelerator(hardware: str, accelerator: str) -> bool:
    """Whether a title (`1 x H100 SXM`) is that of a type of Ray's (`H100`, `A100-80G`)."""
    words = hardware.lower().replace("-", " ").split()
    sizes = [word for word in words if re.fullmatch(r"\d+gb", word)]
    return all(
        part in words or (re.fullmatch(r"\d+g", part) is not None and (not sizes or f"{part}b" in sizes))
        for part in accelerator.lower().split("-")
    )
