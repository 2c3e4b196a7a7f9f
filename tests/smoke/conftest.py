"""The engines that smokes share. Each test says by a fixture's name on what it runs:

- `cluster`: two vLLM replicas of the demo model behind one gateway, by the shipped `local.yaml`. For whatever the
  engine has a part in.
- `simulated` (`simulated/conftest.py`): two gateways, simulated engines. For all else: they start in two seconds
  instead of fifteen.

Both are brought up once, by the real command. A test may do to them what an operator may, kill their processes too, if
it undoes what it applied or ordered: the next one waits until all replicas are ready and nothing runs. `docs/tests.md`
tells what each live test shows; add a line there.
"""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.live.cluster import LiveCluster, begun, eventually, local_spec, waited_for
from tests.otlp import Collector, collecting

REPLICAS = 2


def vllm_spec() -> dict[str, Any]:
    """The shipped spec, with health checks every second, and bounds within which an operator may scale, nobody else."""
    spec = local_spec()
    spec["models"][0]["health"]["period_s"] = 1
    spec["models"][0]["replicas"] = {"count": REPLICAS, "min": 1, "max": REPLICAS}
    spec["autoscaling"] = {"policy": "fixed"}
    spec["classes"] = [
        {"name": "interactive", "ttft_ms": 500},
        {"name": "completion", "ttft_ms": 100},
        {"name": "batch", "ttft_ms": 30_000, "context": "drop_turns"},
    ]
    return spec


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Of spans: of requests whose client asks for it."""
    with collecting() as one:
        yield one


@pytest.fixture(scope="session")
def begun_vllm(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[LiveCluster]:
    """The cluster of `cluster` on its way up: it takes half a minute of one core, in which others may test something
    that waits a lot."""
    tracing = {"endpoint": collector.endpoint, "ratio": 0.0, "trust_clients": True}
    with begun(tmp_path_factory.mktemp("smoke"), "smoke", {**vllm_spec(), "tracing": tracing}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def held_cluster(begun_vllm: LiveCluster) -> Iterator[LiveCluster]:
    """Up for the session; afterwards nothing of it may be left."""
    with waited_for(begun_vllm):
        yield begun_vllm


@pytest.fixture
def cluster(held_cluster: LiveCluster) -> LiveCluster:
    """Two vLLM replicas, ready, with nothing running."""
    eventually(lambda: held_cluster.is_whole() and len(held_cluster.replicas()) == REPLICAS, 180)
    held_cluster.settle()
    return held_cluster


@pytest.fixture
def client(cluster: LiveCluster) -> Iterator[openai.OpenAI]:
    """OpenAI's own."""
    with openai_client(cluster) as client:
        yield client


def openai_client(cluster: LiveCluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0, timeout=60)
