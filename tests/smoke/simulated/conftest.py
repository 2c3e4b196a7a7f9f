"""The cluster of simulated engines: two gateways, and three models that differ in their replicas.

`BIG` is the shipped spec's, with two replicas in a spot pool. `SMALL` follows the load: eight requests fill a replica,
one to four may run. `GROUPED` has two groups of one replica each, with contexts of 8k and 32k tokens.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.engine_model.cost_model import CostModel, line, plain_attention
from deployments.engine_model.limits import EngineModelLimits
from tests.http_server import Handler, listening
from tests.live.cluster import ROOT, LiveCluster, eventually, held, shipped_spec
from tests.simulated import simulated_model

BIG, SMALL, GROUPED = "llama-3.1-8b-simulated", "small-simulated", "grouped-simulated"
ALIAS, HASTY = "alias-simulated", "hasty"
"""Another name of `GROUPED`, and the class for which `BIG` answers in its place."""
REPLICAS, SEATS = 2, 32
"""Of `BIG`, and how many requests each takes."""
MAX = 4
"""Replicas of `SMALL`."""
SEQUENCES = 8
"""What fills one of them."""
PERIOD_S = 0.5
"""How often its policy is asked."""


class Metadata:
    """The page of a machine's metadata on which spot notices stand: tells so many who ask that there is one."""

    def __init__(self) -> None:
        self.notices = 0
        self.lock = threading.Lock()
        self.url = ""

    def take(self) -> bool:
        """Whether there is a notice for the one who asks."""
        with self.lock:
            there, self.notices = self.notices > 0, max(0, self.notices - 1)
            return there


@pytest.fixture(scope="package")
def metadata() -> Iterator[Metadata]:
    page = Metadata()

    class Page(Handler):
        def do_GET(self) -> None:
            is_told = page.take()
            notice = json.dumps({"action": "terminate", "time": "soon"}).encode()
            self.answer(200 if is_told else 404, notice if is_told else b"")

        def do_PUT(self) -> None:
            self.answer(404, b"")

    with listening(Page) as url:
        page.url = f"{url}/latest/meta-data/spot/instance-action"
        yield page


@pytest.fixture(scope="package")
def held_simulated(tmp_path_factory: pytest.TempPathFactory, metadata: Metadata) -> Iterator[LiveCluster]:
    """Up for all tests of this folder; afterwards nothing of it may be left."""
    folder = tmp_path_factory.mktemp("simulated")
    with held(folder, "simulated", spec_in(folder, metadata.url)) as cluster:
        yield cluster


@pytest.fixture(scope="package")
def vllm_meanwhile(request: pytest.FixtureRequest, held_simulated: LiveCluster) -> None:
    """Begins to bring the vLLM cluster up, if a test that comes later needs it: for modules that wait most of the time,
    and start few replicas."""
    if any("held_cluster" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("begun_vllm")


def spec_in(folder: Path, metadata_url: str) -> dict[str, Any]:
    spec = shipped_spec("simulated-h100")
    (big,) = spec["models"]
    big["replicas"]["count"] = REPLICAS
    big["health"]["period_s"] = 1
    big["settings"]["max_num_seqs"] = SEATS
    costs = json.loads((ROOT / "infra/specs/simulated-h100.costs.json").read_text())
    costs["engine"]["max_num_seqs"] = SEATS
    (folder / "big.costs.json").write_text(json.dumps(costs))
    big["simulated"]["costs"] = str(folder / "big.costs.json")
    pools = spec["regions"][0]["pools"]
    pools[0] |= {"spot": True, "spot_notice_url": metadata_url}
    pools.append({"name": "cpu"})  # the small ones get no notices
    spec["models"] += [small_in(folder), grouped_in(folder)]
    spec["classes"] = [{"name": "interactive", "ttft_ms": 2_000}, {"name": HASTY, "ttft_ms": 2_000, "patience_s": 1.0}]
    spec["gateway"]["replicas"] = 2
    del spec["lanes"]  # the usual ones: the shipped spec's give up on waits that this test needs
    return spec


def small_in(folder: Path) -> dict[str, Any]:
    """A replica answers about five requests of 60 tokens a second; it comes and goes in seconds."""
    limits = EngineModelLimits(SEQUENCES, 512, 60_000)
    cost = CostModel(line(0.025, 5e-5), line(0.0, 1e-5), plain_attention(2e-8, 1e-10))
    quick = {"down_after_s": 4, "zero_after_s": 5, "short_cost": 1}
    own = {
        "settings": {"stream_interval": 16},
        "health": {"period_s": 5, "timeout_s": 60, "stall_s": 60},
        "pool": "cpu",
        "replicas": {"count": 1, "min": 1, "max": MAX},
        "autoscaling": {"policy": "backlog", "period_s": PERIOD_S, "backlog": quick, "shadow": {"policy": "fixed"}},
    }
    return simulated_model(SMALL, folder / "costs.json", limits, cost, **own)


def grouped_in(folder: Path) -> dict[str, Any]:
    """Two groups, on engines of the same speed as those of `SMALL`."""
    return {
        **small_in(folder),
        "name": GROUPED,
        "aliases": [ALIAS],
        "fallback": [{"to": BIG, "classes": [HASTY]}],
        "settings": {"max_model_len": 32_768, "max_num_seqs": SEQUENCES, "max_num_batched_tokens": 512},
        "health": {"period_s": 1, "timeout_s": 60, "stall_s": 60},
        "replicas": {"count": 1},
        "autoscaling": {"policy": "fixed"},
        "groups": [{"name": "cheap", "settings": {"max_model_len": 8_192}}, {"name": "dear"}],
    }


@pytest.fixture
def grouped(held_simulated: LiveCluster) -> LiveCluster:
    """`GROUPED`: a replica of each group is there, and nothing runs."""
    cluster = held_simulated.of(GROUPED)
    eventually(cluster.is_whole)
    cluster.settle()
    return cluster


@pytest.fixture
def simulated(held_simulated: LiveCluster) -> LiveCluster:
    """`BIG`: all its replicas and both gateways are there, and nothing runs."""
    cluster = held_simulated.of(BIG)
    eventually(lambda: cluster.is_whole() and len(cluster.gateways()) == 2)
    cluster.settle()
    return cluster


@pytest.fixture
def scaled(held_simulated: LiveCluster) -> LiveCluster:
    """`SMALL`, with nothing running."""
    cluster = held_simulated.of(SMALL)
    cluster.settle()
    return cluster
