"""Day-2 controls on the real stack: cordon, drain, a spot notice, holds that outlive the directory, the owner's books."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psutil
import pytest
import requests
import yaml

from deployments.scaling.books import SCALING_PATH, read_books
from tests.live.cluster import ROOT, LiveCluster, eventually, held

pytestmark = pytest.mark.live

MODEL = "llama-3.1-8b-simulated"
REPLICAS = 2
SHORT: dict[str, Any] = {"model": MODEL, "prompt": "Say something.", "max_tokens": 5}
LONG: dict[str, Any] = {"model": MODEL, "prompt": "Say a lot.", "max_tokens": 2_000, "stream": True}


class Metadata:
    """The page of a machine's metadata on which spot notices stand: tells so many who ask that there is one."""

    def __init__(self) -> None:
        self.notices = 0
        self.lock = threading.Lock()
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with metadata.lock:
                    told, metadata.notices = metadata.notices > 0, max(0, metadata.notices - 1)
                body = json.dumps({"action": "terminate", "time": "soon"}).encode() if told else b""
                self.send_response(200 if told else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                self.send_response(404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/latest/meta-data/spot/instance-action"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def metadata() -> Iterator[Metadata]:
    page = Metadata()
    yield page
    page.server.shutdown()
    page.server.server_close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, metadata: Metadata) -> Iterator[LiveCluster]:
    """The shipped simulated spec with two replicas in a spot pool, and a health check that is quick."""
    spec = yaml.safe_load((ROOT / "infra/specs/simulated-h100.yaml").read_text())
    spec["regions"][0]["pools"][0] |= {"spot": True, "spot_notice_url": metadata.url}
    spec["models"][0]["replicas"]["count"] = REPLICAS
    spec["models"][0]["health"]["period_s"] = 1
    spec["models"][0]["simulated"]["costs"] = str(ROOT / "infra/specs/simulated-h100.costs.json")
    with held(tmp_path_factory.mktemp("controls"), "controls", spec) as live:
        yield live


def ids(cluster: LiveCluster) -> list[str]:
    return [replica["replica_id"] for replica in cluster.replicas()]


def whole(cluster: LiveCluster) -> bool:
    return [replica["state"] for replica in cluster.replicas()] == ["ready"] * REPLICAS


def ask(cluster: LiveCluster) -> str:
    """The replica that answered a short request."""
    answer = requests.post(cluster.url + "/v1/completions", json=SHORT, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-raylane-placement"].split(";")[0]


def done(cluster: LiveCluster, *arguments: str) -> str:
    result = cluster.cli(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def order(cluster: LiveCluster, path: str, **body: Any) -> Any:
    answer = requests.post(cluster.url + path, json={"by": "test", **body}, headers={"authorization": f"Bearer {cluster.secret()}"}, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def audit(cluster: LiveCluster) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cluster.run_dir / "controls.jsonl").read_text().splitlines()]


def test_a_cordoned_replica_gets_nothing_new(cluster: LiveCluster) -> None:
    first, second = ids(cluster)
    done(cluster, "cordon", first.rsplit("#", 1)[1], "--why", "a test")
    assert {replica["replica_id"]: replica["state"] for replica in cluster.replicas()} == {first: "cordoned", second: "ready"}
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ask(cluster), range(16))) == {second}
    assert "cordoned by" in done(cluster, "status", "--once")
    done(cluster, "cordon", first, "--undo")
    with ThreadPoolExecutor(8) as pool:
        eventually(lambda: first in set(pool.map(lambda _: ask(cluster), range(16))))
    assert [(act["kind"], act["replica_id"]) for act in audit(cluster)] == [("cordon", first), ("uncordon", first)]
    cluster.settle()


def test_a_drained_replica_finishes_what_it_has_and_is_replaced(cluster: LiveCluster) -> None:
    before = set(ids(cluster))
    with requests.post(cluster.url + "/v1/completions", json=LONG, stream=True, timeout=120) as answer:
        stream = answer.iter_lines()
        next(stream)
        leaving = answer.headers["x-raylane-placement"].split(";")[0]
        assert "Serve starts another" in done(cluster, "drain", leaving)
        eventually(lambda: leaving not in [r["replica_id"] for r in cluster.replicas() if r["state"] == "ready"])
        assert {ask(cluster) for _ in range(4)} == before - {leaving}
        lines = [line for line in stream if line]
    assert lines[-1] == b"data: [DONE]"
    assert not [line for line in lines if b'"error"' in line]
    assert sum(len(json.loads(line[6:])["choices"][0]["text"].split()) for line in lines[:-1]) >= LONG["max_tokens"] - 1
    eventually(lambda: whole(cluster) and leaving not in ids(cluster))
    assert len(set(ids(cluster)) - before) == 1
    assert cluster.settle()["endings"]["failed"] == 0
    assert (audit(cluster)[-1]["kind"], audit(cluster)[-1]["reason"]) == ("drain", "operator")


def test_a_spot_notice_drains_and_replaces_without_an_error(cluster: LiveCluster, metadata: Metadata) -> None:
    before = set(ids(cluster))
    stop = threading.Event()
    statuses: list[int] = []

    def load() -> None:
        while not stop.is_set():
            statuses.append(requests.post(cluster.url + "/v1/completions", json=SHORT, timeout=120).status_code)

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(load) for _ in range(4)]
        try:
            while before & set(ids(cluster)):  # whoever asks next gets the notice, which may be one that has just come
                known = set(ids(cluster))
                with metadata.lock:
                    metadata.notices = 1
                eventually(lambda known=known: whole(cluster) and known != set(ids(cluster)))  # type: ignore[misc]
            assert metadata.notices == 0
            seen = len(statuses)
            eventually(lambda: len(statuses) > seen + 8)
        finally:
            stop.set()
        for future in futures:
            future.result()
    assert set(statuses) == {200}
    assert cluster.settle()["endings"]["failed"] == 0


def test_a_hold_outlives_the_directory(cluster: LiveCluster) -> None:
    assert "at least 2 replicas" in done(cluster, "hold", MODEL, "2", "--for", "30m", "--why", "a test")
    assert MODEL in done(cluster, "controls")
    metrics = cluster.ask("/metrics").text
    assert f'raylane_control{{kind="hold",model="{MODEL}"}} 2.0' in metrics
    (actor,) = [process for process in cluster.family() if "Directory" in "".join(process.cmdline())]
    os.kill(actor.pid, signal.SIGKILL)
    psutil.wait_procs([actor], timeout=30)

    def told() -> bool:
        """By the new directory, which knows what the old one wrote down."""
        try:
            orders = order(cluster, "/raylane/controls", model=MODEL, kind="pin", replicas=2, for_s=60)
        except AssertionError:
            return False
        return [control["kind"] for control in orders["controls"]] == ["hold", "pin"]

    eventually(told)
    eventually(lambda: len(cluster.replicas()) == REPLICAS and ask(cluster))
    done(cluster, "release", MODEL)
    assert "Nothing is held" in done(cluster, "controls")
    assert [act["kind"] for act in audit(cluster) if act["kind"] in ("hold", "release")] == ["hold", "release"]


def test_the_owner_shows_its_books(cluster: LiveCluster) -> None:
    ask(cluster)
    gateway = cluster.ask("/raylane/status").json()["gateway"]
    url = gateway["cell_url"] + f"{SCALING_PATH}/{MODEL}"
    assert requests.get(url, timeout=10).status_code == 401
    answer = requests.get(url, params={"latency_span_s": "600"}, headers={"authorization": f"Bearer {cluster.secret()}"}, timeout=10)
    books = read_books(answer.content)
    assert len(books.snapshot.replicas) == REPLICAS
    assert books.latencies is not None
    assert books.latencies.requests > 0
    assert books.attainment["interactive"] == 0.99


def test_an_unknown_replica_is_told_with_those_that_there_are(cluster: LiveCluster) -> None:
    """The commands say what is wrong, and change nothing."""
    result = cluster.cli("drain", "nobody")
    assert result.returncode == 1
    assert all(replica_id in result.stderr for replica_id in ids(cluster))
    assert whole(cluster)
