"""The server that a test of vLLM asks for, by vLLM's flags, as a spec of ours; and how each side is started from that
spec."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.serving.sides import vllm_flags
from cluster.files import shipped
from cluster.spec import ClusterSpec
from deployments.engine.args import arguments
from deployments.engine.environment import replica_environment
from deployments.gateway.entrance import digest_of

CONTEXTS = (2_048, 4_096)
"""Bounds of a served context: a larger one takes longer to fill, where a test sets no end; with few sizes, more tests
share a server."""
SETTINGS = (
    "max_num_batched_tokens",
    "enforce_eager",
    "tool_call_parser",
    "reasoning_parser",
    "chat_template",
    "max_lora_rank",
)
"""Flags that are settings of the spec under the same name."""
_DROPPED = frozenset(
    {
        "dtype",
        "max_num_seqs",
        "enable_chunked_prefill",
        "gpu_memory_utilization",
        "seed",
        "enable_auto_tool_choice",
        "enable_lora",
        "attention_backend",
        "trust_remote_code",
        "load_format",
        "max_cpu_loras",
    }
)
"""Flags that both sides do without: they choose hardware and weights, or follow from another key of the spec."""
_SETTINGS: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": CONTEXTS[1],
    "max_num_seqs": 64,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 256 << 20,
}


def flags_read(flags: Sequence[str]) -> dict[str, Any]:
    """Flags of vLLM's command line by the names of their arguments."""
    values: dict[str, Any] = {}
    name = ""
    for text in (part for flag in flags for part in (flag.split("=", 1) if flag.startswith("--") else [flag])):
        if text.startswith("--"):
            name = text.removeprefix("--").replace("-", "_")
            values[name] = True
        else:
            values[name] = [*(values[name] if isinstance(values[name], list) else []), text]
    read = {name: value if value is True else [_value(text) for text in value] for name, value in values.items()}
    return {name: value[0] if value is not True and len(value) == 1 else value for name, value in read.items()}


def spec_of(name: str, source: Path, flags: Sequence[str], api_key: str | None, seed: int = 0) -> dict[str, Any]:
    """The spec that serves the model in the folder `source` under a name, with these flags, to whoever has the key.
    `seed`: the engine's, for requests that have none."""
    spec: dict[str, Any] = yaml.safe_load(shipped("specs/local.yaml").read_text(encoding="utf-8"))
    given = flags_read(flags)
    settings = _SETTINGS | {"seed": seed}
    extra: dict[str, Any] = {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}}
    served: dict[str, Any] = spec["models"][0]
    served |= {"name": name, "source": str(source), "replicas": {"count": 1}, "settings": settings}
    for flag, value in given.items():
        if flag in SETTINGS:
            settings[flag] = value
        elif flag == "max_model_len":
            settings[flag] = min(max(int(value), CONTEXTS[0]), CONTEXTS[1])
        elif flag == "served_model_name":
            served["name"] = value
        elif flag in ("enable_prefix_caching", "no_enable_prefix_caching"):
            settings["prefix_caching"] = not flag.startswith("no_")
        elif flag == "lora_modules":
            modules = value if isinstance(value, list) else [value]
            served["adapters"] = [
                dict(zip(("name", "source"), str(module).split("=", 1), strict=True)) for module in modules
            ]
        elif flag.startswith("structured_outputs_config"):
            continue  # so small a model would write blanks for ever
        elif flag == "root_path":
            spec["gateway"][flag] = value
        elif flag not in _DROPPED:
            extra[flag.removeprefix("no_")] = False if flag.startswith("no_") else value
    settings["extra"] = extra
    spec["name"] = "conformance"
    if api_key is not None:
        spec["tenants"] = [{"name": "tests", "keys": [digest_of(api_key)]}]
    return spec


def command_of(side: str, spec: ClusterSpec, file: Path) -> list[str]:
    """How a side is started from the spec."""
    if side == "raylane":
        return [sys.executable, "-m", "cli.main", "up", str(file)]
    model = spec.models[0]
    values = {**arguments(model), **model.settings.extra, "host": "127.0.0.1", "port": spec.gateway.port}
    values |= {"root_path": spec.gateway.root_path} if spec.gateway.root_path else {}
    values["lora_modules"] = [f"{module['name']}={module['path']}" for module in values.get("lora_modules", ())]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *vllm_flags(values)]


def environment_of(side: str, spec: ClusterSpec, folder: Path, root: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a side's process: ours without what would lead it to vLLM's tests, and what the engine
    needs."""
    own = {**os.environ, **more, "PYTHONPATH": str(root), "RAYLANE_HOME": str(folder / "home")}
    if side == "raylane":
        return own
    model = spec.models[0]
    return own | replica_environment(model, spec.pool_of(model, spec.regions[0]))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
