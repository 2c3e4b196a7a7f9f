"""A model of the spec as vLLM's arguments.

`arguments` is pure: the spec's names become vLLM's, and None is left out, so that vLLM's default stays in force.
`namespace` adds vLLM's defaults and the spec's `extra`, checked by vLLM's own parser; it imports vLLM, so only replicas
(and whoever wants `extra` checked) call it.
"""

import argparse
import json
import os
from typing import Any, NoReturn

from pydantic import JsonValue

from cluster.artifacts import resolve_source
from cluster.spec import ClusterSpec, EngineSettings, Model, Speculative
from deployments.engine.environment import TRACES_ENDPOINT
from deployments.engine.steps import known_costs

_MIN_QUEUE = 4_096
"""One request may be of thousands of sequences (gateway.limits.max_sequences)."""


class ArgumentsError(ValueError):
    """A key of the spec that vLLM does not take; the message names it, its value and what is allowed."""


def not_served(spec: ClusterSpec) -> list[str]:
    """What a spec asks of vLLM that no replica serves."""
    return [reason for view in spec.views_in() if (reason := why_not_served(view)) is not None]


def why_not_served(model: Model) -> str | None:
    """A replica has one feed, one watchdog and one account of its load: of one engine core, where vLLM would have one
    for each data-parallel rank."""
    copies = model.settings.data_parallel_size
    if model.engine != "vllm" or copies == 1:
        return None
    return (
        f"{model.where}.settings.data_parallel_size = {copies}: described, simulated and planned, but not served; "
        "allowed to serve: 1, and more replicas"
    )


def arguments(model: Model) -> dict[str, Any]:
    """vLLM's arguments for `model`, `extra` and vLLM's own defaults left out. Raises
    `cluster.artifacts.ArtifactError`."""
    settings = model.settings
    return {
        "model": resolve_source(model.source),
        "served_model_name": [model.name],
        **_engine(settings),
        **({"load_format": "runai_streamer"} if model.load == "stream" else {}),
        **_given(
            quantization=settings.quantization,
            kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
            reasoning_parser=settings.reasoning_parser,
            chat_template=settings.chat_template,
            speculative_config=_speculative(settings.speculative) if settings.speculative else None,
            tool_call_parser=settings.tool_call_parser,
            enable_auto_tool_choice=True if settings.tool_call_parser else None,
            enable_logging_iteration_details=True if model.step_log or known_costs(model) else None,
        ),
        **_task(model),
        **_lora(model),
    }


def namespace(model: Model) -> argparse.Namespace:
    """The arguments of vLLM's API server for `model`. Raises ArgumentsError for a key of `extra` that vLLM refuses."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.openai.models.protocol import LoRAModulePath
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args: argparse.Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    values = arguments(model)
    values["lora_modules"] = [LoRAModulePath(**module) for module in values.get("lora_modules", ())] or None
    # `usage` tells of cached tokens, as OpenAI's does: of its own tenant's alone (`openai/prefix.py`).
    traces = _given(otlp_traces_endpoint=os.environ.get(TRACES_ENDPOINT))
    values = {"enable_prompt_tokens_details": True, **traces, **values, **_extra(model, args)}
    for key, value in values.items():
        setattr(args, key, value)
    validate_parsed_serve_args(args)
    return args


def _engine(settings: EngineSettings) -> dict[str, Any]:
    values: dict[str, Any] = {
        "dtype": settings.dtype,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "stream_interval": settings.stream_interval,
        "enable_chunked_prefill": settings.chunked_prefill,
        "enable_prefix_caching": settings.prefix_caching,
        "enforce_eager": settings.enforce_eager,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size,
        "data_parallel_size": settings.data_parallel_size,
        "enable_expert_parallel": settings.enable_expert_parallel,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "seed": settings.seed,
        # Back-stops: the gateway binds late, so that neither has much to do.
        "scheduling_policy": "priority",
        "max_num_queued_reqs": max(_MIN_QUEUE, 8 * settings.max_num_seqs),
    }
    if settings.ranks > 1:
        # Inside a placement group vLLM would choose Ray's executor, which asks for bundles of its own; the ranks are
        # this replica's processes.
        values["distributed_executor_backend"] = "mp"
    return values


def _speculative(speculative: Speculative) -> dict[str, Any]:
    values: dict[str, Any] = {
        "method": speculative.method,
        "num_speculative_tokens": speculative.num_speculative_tokens,
    }
    if speculative.model is not None:
        values["model"] = resolve_source(speculative.model)
    return values


def _task(model: Model) -> dict[str, Any]:
    if model.task != "embed":
        return {}
    # An encoder caches no prefix and takes no prompt in chunks: vLLM knows which models are encoders.
    settings = model.settings
    return {
        "runner": "pooling",
        "convert": "embed",
        "enable_chunked_prefill": None if settings.chunked_prefill else False,
        "enable_prefix_caching": None if settings.prefix_caching else False,
    }


def _lora(model: Model) -> dict[str, Any]:
    if not model.adapters:
        return {}
    return {
        "enable_lora": True,
        "max_loras": model.settings.max_loras,
        "max_lora_rank": model.settings.max_lora_rank,
        "lora_modules": [{"name": adapter.name, "path": resolve_source(adapter.source)} for adapter in model.adapters],
    }


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _extra(model: Model, defaults: argparse.Namespace) -> dict[str, Any]:
    """The spec's `extra`, each value read by vLLM's parser as its flag's would be."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise ValueError(message)

    parser = make_arg_parser(Parser()) if model.settings.extra else None
    values = {}
    for key, value in model.settings.extra.items():
        where = f"models.{model.name}.settings.extra.{key} = {value!r}"
        if key in arguments(model):
            raise ArgumentsError(f"{where}: set by raylane; allowed: an argument that no other key of the spec sets")
        if parser is None or not hasattr(defaults, key):
            raise ArgumentsError(
                f"{where}: unknown to this version of vLLM; allowed: the Python name of an engine argument, as in "
                "max_logprobs"
            )
        try:
            values[key] = getattr(parser.parse_args(_flags(key, value)), key)
        except ValueError as error:
            raise ArgumentsError(f"{where}: {error}") from error
    return values


def _flags(key: str, value: JsonValue) -> list[str]:
    flag = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *(item if isinstance(item, str) else json.dumps(item) for item in value)]
    return [f"--{flag}={value if isinstance(value, str) else json.dumps(value)}"]
