"""An engine with adapters: it starts, answers what ends vLLM's CPU build without our patch, and refuses what ends it
all the same."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
import torch
from safetensors.torch import save_file

from tests.live.cluster import ROOT, held, local_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def make_adapter(folder: Path, output: bool) -> None:
    """A LoRA adapter of the demo model: one that changes nothing, or one that changes the output layer."""
    config = json.loads((ROOT / "infra/demo/target/config.json").read_text())
    folder.mkdir()
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.zeros(8, config["hidden_size"])
        weights[f"{name}.lora_B.weight"] = torch.zeros(config["hidden_size"], 8)
    if output:
        weights["base_model.model.lm_head.lora_A.weight"] = torch.ones(8, config["hidden_size"])
        weights["base_model.model.lm_head.lora_B.weight"] = torch.ones(config["vocab_size"], 8)
    save_file(weights, folder / "adapter_model.safetensors")
    targets = ["q_proj", *(["lm_head"] if output else [])]
    adapter = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 8, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))


@pytest.mark.parametrize(("output", "status"), [(False, 200), (True, 400)], ids=["attention", "output layer"])
async def test_prompt_logprobs_beside_other_requests(
    tmp_path_factory: pytest.TempPathFactory, output: bool, status: int
) -> None:
    folder = tmp_path_factory.mktemp("adapters")
    make_adapter(folder / "adapter", output)
    spec = local_spec(1, max_lora_rank=8)
    spec["models"][0]["adapters"] = [{"name": "adapted", "source": str(folder / "adapter")}]
    with held(folder, "adapters", spec) as cluster:
        (before,) = cluster.replicas()
        async with aiohttp.ClientSession() as session:

            async def send(number: int, **more: int) -> int:
                model = ("demo", "adapted")[number % 2]
                body = {"model": model, "prompt": f"1, 2, {number},", "max_tokens": 20, **more}
                async with session.post(cluster.url + "/v1/completions", json=body) as response:
                    return response.status

            asked = [send(number, **{"prompt_logprobs": 1} if number < 16 else {}) for number in range(24)]
            assert await asyncio.gather(*asked) == [status] * 16 + [200] * 8
        (after,) = cluster.replicas()
        assert after["pid"] == before["pid"]
