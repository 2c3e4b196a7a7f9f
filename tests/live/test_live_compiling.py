"""A machine on which nothing was compiled before: no request waits for a compiler, and no engine is taken for stuck."""

from pathlib import Path
from typing import Any

import pytest
import requests

from tests.live.cluster import held, local_spec

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STALL_S = 3
"""Less than a compilation takes."""
ASKED: list[dict[str, Any]] = [
    {"prompt": "1, 2, 3,", "logprobs": 5},
    {"prompt": ["1, 2,", "3, 4,", "5, 6,", "7, 8,"], "logprobs": 3, "prompt_logprobs": 1},
    {"prompt": "1, 2, 3,", "n": 5, "logprobs": 0, "temperature": 1, "top_p": 0.5, "top_k": 3, "seed": 7},
    {"prompt": "1, 2, 3,", "temperature": 1, "min_p": 0.1, "presence_penalty": 1, "repetition_penalty": 1.2},
    {"prompt": "1, 2, 3,", "structured_outputs": {"regex": "[0-9]{3}"}},
]


def test_what_clients_may_ask_is_compiled_before_the_replica_is_ready(
    tmp_path_factory: pytest.TempPathFactory, tell: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("compiling")
    cache = folder / "inductor"
    cache.mkdir()
    spec = local_spec(1, max_num_seqs=16, kv_cache_memory_bytes=64 << 20)
    spec["starts"] = {"compile_cache": str(cache)}
    spec["models"][0]["health"] |= {"stall_s": STALL_S, "period_s": 1}
    with held(folder, "compiling", spec) as cluster:
        (before,) = cluster.replicas()
        compiled = libraries(cache)
        assert compiled
        slowest_s = 0.0
        for asked in ASKED:
            answer = requests.post(
                cluster.url + "/v1/completions", json={"model": "demo", "max_tokens": 4, **asked}, timeout=60
            )
            assert answer.status_code == 200, answer.text
            slowest_s = max(slowest_s, answer.elapsed.total_seconds())
        assert libraries(cache) == compiled
        (after,) = cluster.replicas()
        assert after["pid"] == before["pid"]
        tell.append(
            f"{len(compiled)} libraries compiled before the replica was ready; the slowest of {len(ASKED)} requests "
            f"took {slowest_s:.2f} s"
        )


def libraries(cache: Path) -> set[str]:
    """What the compiler has made."""
    return {str(path.relative_to(cache)) for path in cache.rglob("*.so")}
