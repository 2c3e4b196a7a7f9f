"""An engine with adapters: it starts, and answers what ends vLLM's CPU build without our patch."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
import torch
import yaml
from safetensors.torch import save_file

from tests.live.cluster import ROOT, held

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def make_adapter(folder: Path) -> None:
    """A LoRA adapter of the demo model that changes nothing."""
    config = json.loads((ROOT / "infra/demo/target/config.json").read_text())
    folder.mkdir()
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.zeros(8, config["hidden_size"])
        weights[f"{name}.lora_B.weight"] = torch.zeros(config["hidden_size"], 8)
    save_file(weights, folder / "adapter_model.safetensors")
    adapter = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


async def test_prompt_logprobs_beside_other_requests(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("adapters")
    make_adapter(folder / "adapter")
    spec = yaml.safe_load((ROOT / "infra/specs/local.yaml").read_text())
    spec["models"][0]["replicas"] = {"count": 1}
    spec["models"][0]["settings"] |= {"max_lora_rank": 8}
    spec["models"][0]["adapters"] = [{"name": "adapted", "source": str(folder / "adapter")}]
    with held(folder, "adapters", spec) as cluster:
        (before,) = cluster.replicas()
        async with aiohttp.ClientSession() as session:

            async def status(number: int) -> int:
                body = {
                    "model": ("demo", "adapted")[number % 2],
                    "prompt": f"1, 2, {number},",
                    "max_tokens": 20,
                    "prompt_logprobs": 1,
                }
                async with session.post(cluster.url + "/v1/completions", json=body) as response:
                    return response.status

            assert set(await asyncio.gather(*map(status, range(16)))) == {200}
        (after,) = cluster.replicas()
        assert after["pid"] == before["pid"]
