"""Day-2 controls on the real stack: cordon, drain, a spot notice, holds that outlive the directory, the owner's
books."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import requests

from deployments.cell.act import read_acts
from deployments.store import FILE_NAME
from deployments.wire import to_plain
from tests.live.cluster import LiveCluster, eventually
from tests.smoke.simulated.conftest import BIG as MODEL
from tests.smoke.simulated.conftest import REPLICAS, Metadata

pytestmark = pytest.mark.live

SHORT: dict[str, Any] = {"model": MODEL, "prompt": "Say something.", "max_tokens": 5}
LONG: dict[str, Any] = {"model": MODEL, "prompt": "Say a lot.", "max_tokens": 900, "stream": True}


def ids(simulated: LiveCluster) -> list[str]:
    return [replica["replica_id"] for replica in simulated.replicas()]


def ask(simulated: LiveCluster) -> str:
    """The replica that answered a short request."""
    answer = requests.post(simulated.url + "/v1/completions", json=SHORT, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-raylane-placement"].split(";")[0]


def order(simulated: LiveCluster, path: str, **body: Any) -> Any:
    answer = requests.post(
        simulated.url + path,
        json={"by": "test", **body},
        headers={"authorization": f"Bearer {simulated.secret()}"},
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def audit(simulated: LiveCluster) -> list[dict[str, Any]]:
    return [to_plain(act) for act in read_acts(simulated.run_dir / FILE_NAME)]


def test_a_cordoned_replica_gets_nothing_new(simulated: LiveCluster) -> None:
    first, second = ids(simulated)
    simulated.done("cordon", first.rsplit("#", 1)[1], "--why", "a test")
    assert {replica["replica_id"]: replica["state"] for replica in simulated.replicas()} == {
        first: "cordoned",
        second: "ready",
    }
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ask(simulated), range(16))) == {second}
    assert "cordoned by" in simulated.done("status", "--once")
    simulated.done("cordon", first, "--undo")
    with ThreadPoolExecutor(8) as pool:
        eventually(lambda: first in set(pool.map(lambda _: ask(simulated), range(16))))
    assert [act["kind"] for act in audit(simulated) if act.get("replica_id") == first] == ["cordon", "uncordon"]
    simulated.settle()


def test_a_drained_replica_finishes_what_it_has_and_is_replaced(simulated: LiveCluster) -> None:
    before, failed = set(ids(simulated)), simulated.model()["endings"]["failed"]
    with requests.post(simulated.url + "/v1/completions", json=LONG, stream=True, timeout=120) as answer:
        stream = answer.iter_lines()
        next(stream)
        leaving = answer.headers["x-raylane-placement"].split(";")[0]
        assert "Serve starts another" in simulated.done("drain", leaving)
        eventually(lambda: leaving not in [r["replica_id"] for r in simulated.replicas() if r["state"] == "ready"])
        assert {ask(simulated) for _ in range(4)} == before - {leaving}
        lines = [line for line in stream if line]
    assert lines[-1] == b"data: [DONE]"
    assert not [line for line in lines if b'"error"' in line]
    assert sum(len(json.loads(line[6:])["choices"][0]["text"].split()) for line in lines[:-1]) >= LONG["max_tokens"] - 1
    eventually(lambda: simulated.is_whole() and leaving not in ids(simulated))
    assert len(set(ids(simulated)) - before) == 1
    assert simulated.settle()["endings"]["failed"] == failed
    assert (audit(simulated)[-1]["kind"], audit(simulated)[-1]["reason"]) == ("drain", "operator")


def test_a_spot_notice_drains_and_replaces_without_an_error(simulated: LiveCluster, metadata: Metadata) -> None:
    before, failed = set(ids(simulated)), simulated.model()["endings"]["failed"]
    stop = threading.Event()
    statuses: list[int] = []

    def load() -> None:
        while not stop.is_set():
            statuses.append(requests.post(simulated.url + "/v1/completions", json=SHORT, timeout=120).status_code)

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(load) for _ in range(4)]
        try:
            while before & set(
                ids(simulated)
            ):  # whoever asks next gets the notice, which may be one that has just come
                known = set(ids(simulated))
                with metadata.lock:
                    metadata.notices = 1
                eventually(lambda known=known: simulated.is_whole() and known != set(ids(simulated)))  # type: ignore[misc]
            assert metadata.notices == 0
            seen = len(statuses)
            eventually(lambda: len(statuses) > seen + 8)
        finally:
            stop.set()
        for future in futures:
            future.result()
    assert set(statuses) == {200}
    assert simulated.settle()["endings"]["failed"] == failed


def test_a_hold_outlives_the_directory(simulated: LiveCluster) -> None:
    assert "at least 2 replicas" in simulated.done("hold", MODEL, "2", "--for", "30m", "--why", "a test")
    assert MODEL in simulated.done("controls")
    line = f'raylane_control{{kind="hold",model="{MODEL}"}} 2.0'
    assert line in simulated.ask("/metrics", simulated.owner_url()).text
    (actor,) = [process for process in simulated.family() if "Directory" in "".join(process.cmdline())]
    os.kill(actor.pid, signal.SIGKILL)
    psutil.wait_procs([actor], timeout=30)

    def reported() -> bool:
        """By the new directory, which knows what the old one wrote down."""
        try:
            orders = order(simulated, "/raylane/controls", model=MODEL, kind="pin", replicas=2, for_s=60)
        except AssertionError:
            return False
        return [control["kind"] for control in orders["controls"]] == ["hold", "pin"]

    eventually(reported)
    eventually(lambda: len(simulated.replicas()) == REPLICAS and ask(simulated))
    simulated.done("release", MODEL)
    assert "Nothing is held" in simulated.done("controls")
    assert [act["kind"] for act in audit(simulated) if act.get("model") == MODEL][-3:] == ["hold", "pin", "release"]
