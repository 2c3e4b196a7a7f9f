"""How the flags that vLLM's tests give their server become a spec and a command; the tests themselves are run by
`benchmarks.conformance`."""

from pathlib import Path

import yaml

from benchmarks.conformance.served import flags_read, spec_of
from cluster.spec import parse_spec

FLAGS = [
    "--dtype", "bfloat16", "--max-model-len", "2048", "--enforce-eager", "--enable-lora", "--lora-modules", "one=/a",
    "two=/b", "--max-lora-rank", "64", "--no-enable-prefix-caching", "--enable-prompt-tokens-details",
    "--tool-call-parser=hermes", "--limit-mm-per-prompt", '{"image": 2}',
]  # fmt: skip


def test_flags_are_read_as_vllm_reads_them() -> None:
    assert flags_read(["--a-b", "1", "--c", "--d=x", "--e", "f", "g"]) == {
        "a_b": 1,
        "c": True,
        "d": "x",
        "e": ["f", "g"],
    }
    assert flags_read([]) == {}


def test_a_spec_has_what_the_flags_say(tmp_path: Path) -> None:
    spec = parse_spec(yaml.safe_dump(spec_of("org/Some-Model", tmp_path, FLAGS, None)))
    (model,) = spec.models
    assert (model.name, model.source, spec.tenants) == ("org/Some-Model", str(tmp_path), ())
    settings = model.settings
    assert (settings.max_model_len, settings.enforce_eager, settings.prefix_caching, settings.max_lora_rank) == (
        2_048,
        True,
        False,
        64,
    )
    assert settings.tool_call_parser == "hermes"
    assert [(adapter.name, adapter.source) for adapter in model.adapters] == [("one", "/a"), ("two", "/b")]
    assert settings.extra["enable_prompt_tokens_details"] is True
    assert settings.extra["limit_mm_per_prompt"] == {"image": 2}


# Ran with SIGINT ignored: starts a server from the thread that the tests' servers are started from, and stops it.
