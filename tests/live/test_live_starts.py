"""Starts that fail, and starts that find on their node what an earlier one left."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import requests

from cluster.artifacts import resolve_source
from deployments.cell.lifecycle_log import read_lives
from deployments.starts.start import ReplicaStart
from deployments.store import FILE_NAME
from deployments.wire import to_plain
from tests.live.cluster import ROOT, LiveCluster, eventually, held, local_spec, shipped_spec
from tests.live.test_live_compiling import libraries

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SMALL = {"max_num_seqs": 16, "kv_cache_memory_bytes": 64 << 20}


def starts_in(cluster: LiveCluster, model: str, outcome: str) -> list[dict[str, Any]]:
    """Of the life log, oldest first."""
    events = [event for _, event in read_lives(cluster.run_dir / FILE_NAME)]
    starts = [event for event in events if isinstance(event, ReplicaStart)]
    return [to_plain(start) for start in starts if (start.model, start.outcome) == (model, outcome)]


def test_a_model_that_cannot_start_keeps_no_other_one_waiting(
    tmp_path_factory: pytest.TempPathFactory, tell: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "llama"}')
    spec = shipped_spec("simulated-h100")
    (served,) = spec["models"]
    served["replicas"]["count"] = 1
    costs = Path(served["simulated"]["costs"])
    served["simulated"]["costs"] = str(costs if costs.is_absolute() else ROOT / "infra/specs" / costs)
    spec["regions"][0]["pools"].append({"name": "cpu"})
    (broken,) = local_spec(1, **SMALL)["models"]
    spec["models"].append(broken | {"name": "broken", "source": str(folder / "model"), "pool": "cpu"})
    with held(folder, "broken", spec) as cluster:
        said = cluster.log.read_text()
        assert "Ready" in said
        assert "NOT SERVED model broken cannot start (phase environment; 3 attempts)" in said
        assert "NoSuchModel" in said
        assert "to do: " in said
        ready = requests.get(cluster.url + "/ready", timeout=10)
        assert (ready.status_code, ready.json()["models_that_fail"]) == (200, ["broken"])
        assert requests.get(cluster.url + "/ready?model=broken", timeout=10).status_code == 503
        body = {"model": served["name"], "prompt": "1, 2, 3,", "max_tokens": 4}
        assert requests.post(cluster.url + "/v1/completions", json=body, timeout=60).status_code == 200
        log = cluster.of("broken").model()["failing_start"]["last"]["log"]
        assert "Traceback" in Path(log).read_text()
        assert "cannot start (phase environment" in cluster.done("status", "--once")
        eventually(lambda: len(starts_in(cluster, "broken", "failed")) >= 4)
        ended = [start["ended_unix_s"] for start in starts_in(cluster, "broken", "failed")][:4]
        between = [later - one for one, later in itertools.pairwise(ended)]
        assert all(span_s >= wait_s for span_s, wait_s in zip(between, (1, 2, 4), strict=True)), between
        tell.append(f"from failure to failure: {', '.join(f'{span_s:.1f} s' for span_s in between)}")


def test_the_second_start_on_a_node_fetches_nothing_and_compiles_nothing_again(
    tmp_path_factory: pytest.TempPathFactory, tell: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("starts")
    spec = local_spec(**SMALL)
    spec["artifacts"] = {"copy_folders": True, "cache": str(folder / "models")}
    spec["autoscaling"] = {"policy": "fixed"}
    spec["starts"] = {"compile_cache": str(folder / "compiled")}
    source = folder / "demo"
    model = spec["models"][0]
    shutil.copytree(resolve_source("demo"), source)
    model |= {"source": str(source), "replicas": {"count": 1, "max": 2}}
    model["settings"] |= {"enforce_eager": False, "max_model_len": 2_048}
    with held(folder, "starts", spec) as cluster:
        (first,) = cluster.replicas()
        compiled = libraries(folder / "compiled")
        assert compiled
        cluster.done("pin", "demo", "2", "--for", "10m")
        eventually(lambda: len(starts_in(cluster, "demo", "ready")) == 2, 240)
        assert libraries(folder / "compiled") == compiled
        before, after = (start["seconds"] for start in starts_in(cluster, "demo", "ready"))
        assert before["fetch"] > 0
        assert after["fetch"] == 0
        assert after["compile"] < before["compile"]
        for start in starts_in(cluster, "demo", "ready"):
            assert sum(start["seconds"].values()) == pytest.approx(
                start["ended_unix_s"] - start["asked_unix_s"], rel=0.05
            )
        cluster.done("pin", "demo", "1", "--for", "10m")
        eventually(lambda: len(cluster.replicas()) == 1, 120)
        # The node has room again: the decision for the next start expects no fetch there, and little to compile.
        cluster.done("pin", "demo", "2", "--for", "10m")
        midway_s = (before["compile"] + after["compile"]) / 2  # what is expected has followed the second start
        eventually(lambda: 0 < expected(cluster).get("compile", 0) < midway_s, 60)
        assert "fetch" not in expected(cluster)
        tell += [f"{name} start: {seconds}" for name, seconds in (("first", before), ("second", after))]
        assert first["start"]["seconds"] == before


def expected(cluster: LiveCluster) -> dict[str, float]:
    """The phases of the next start, as the last decision had them."""
    explained = json.loads(cluster.done("explain", "demo", "--json", "--reasons", "--last", "1"))
    inputs = explained[-1]["inputs"] if explained else {}
    return {name.split()[1]: value for name, value in inputs.items() if name.startswith("start: ")}
