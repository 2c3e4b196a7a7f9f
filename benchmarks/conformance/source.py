"""What vLLM's tests are run with: the tests themselves, from vLLM's source distribution, and a small model that stands
for every model.

Nothing of the tests is kept in this repository. The model is as small as one can be, of weights drawn at random, with
what the tests ask of a model: a vocabulary of over 5,000 tokens, a context of over 20,000, ChatML with any role, tools
and thoughts, and answers that seldom end by themselves. What it says means nothing, so a test of good sense fails on
both sides.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VERSION = "0.32.0"
"""The version of vLLM whose tests are run: that of the engine (`pyproject.toml`)."""

_BUILD = ("setuptools-rust", "setuptools-scm")
"""What vLLM's `setup.py` imports when pip asks it for its metadata, beside what is installed here. Nothing is built."""
_TESTS = ("tblib==3.2.2",)
"""What vLLM's tests import and no other package here needs."""


class SourceError(RuntimeError):
    """The source distribution, or a package that the tests need, could not be had."""


def fetch(folder: Path) -> Path:
    """Has pip download the source distribution into `folder` and unpacks its tests. Returns the folder that holds
    `tests`. Raises SourceError."""
    root = folder / f"vllm-{VERSION}"
    if not (root / "tests").exists():
        _install(folder / "build", _BUILD)
        # vLLM's metadata names the device in its version, and pip takes a version that is not the one it asked for as
        # another distribution.
        environment = {
            "PYTHONPATH": str(folder / "build"),
            "VLLM_TARGET_DEVICE": "empty",
            "VLLM_VERSION_OVERRIDE": VERSION,
        }
        options = ["--no-deps", "--no-binary", "vllm", "--no-build-isolation", "--dest", str(folder)]
        _pip(["download", *options, f"vllm=={VERSION}"], environment)
        with tarfile.open(folder / f"vllm-{VERSION}.tar.gz") as archive:
            desired = [member for member in archive.getmembers() if member.name.startswith(f"vllm-{VERSION}/tests/")]
            archive.extractall(folder, desired, filter="data")
    return root


def install_what_tests_need(folder: Path) -> Path:
    """Installs what only the tests import. Returns the folder for PYTHONPATH. Raises SourceError."""
    target = folder / "packages"
    if not target.exists():
        _install(target, _TESTS, "--no-deps")
    return target


def _install(target: Path, packages: tuple[str, ...], *options: str) -> None:
    _pip(["install", "--target", str(target), *options, *packages], {})


def _pip(arguments: list[str], environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SourceError(f"`pip {' '.join(arguments)}` failed:\n{done.stderr[-2_000:]}")


VOCABULARY = 8_192
CONTEXT = 32_768
_WIDTH, _HEADS, _LAYERS, _RANK = 64, 2, 2, 8
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools\\n<tools>' }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{% if not (loop.first and message.role == 'system') %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def make_model(folder: Path, texts: Iterable[str]) -> Path:
    """Makes the model, and a tokenizer for such texts. Returns the folder."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    learner = ByteLevelBPETokenizer()
    learner.train_from_iterator(
        texts, vocab_size=VOCABULARY - len(_MARKS), special_tokens=list(_SPECIAL), show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=learner._tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.add_tokens(list(_MARKS))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        head_dim=_WIDTH // _HEADS,
        max_position_embeddings=CONTEXT,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def make_adapter(folder: Path) -> Path:
    """Makes a LoRA adapter of the model that changes nothing. Returns the folder."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    weights: dict[str, Any] = {}
    for layer in range(_LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights |= {
            f"{name}.lora_A.weight": torch.zeros(_RANK, _WIDTH),
            f"{name}.lora_B.weight": torch.zeros(_WIDTH, _RANK),
        }
    save_file(weights, folder / "adapter_model.safetensors")
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": _RANK,
        "lora_alpha": _RANK,
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter), encoding="utf-8")
    return folder
