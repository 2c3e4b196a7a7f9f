"""A Prometheus that finds a cluster's processes by itself, with the secret that they ask for, and an Alertmanager."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.live.cluster import LiveCluster, eventually, free_port
from tests.source import ROOT

_DURATION = re.compile(r"(?P<before>\[|offset |for: )(?P<number>\d+)(?P<unit>[mhd])\b")
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400}


def _installed(name: str, package: str) -> str:
    if (found := shutil.which(name)) is None:
        pytest.skip(f"{name} is not installed: apt-get install {package}")
    return found


@contextmanager
def _process(name: str, folder: Path, *command: str) -> Iterator[None]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def prometheus(
    cluster: LiveCluster, rules: Sequence[Path] = (), alertmanager: str = "", also: Sequence[dict[str, Any]] = ()
) -> Iterator[str]:
    """Scrapes every second, and evaluates `rules` as often. `alertmanager`: its address; `also`: further targets, in
    the form of a static configuration."""
    path, address = _installed("prometheus", "prometheus"), f"127.0.0.1:{free_port()}"
    authorization = {"type": "Bearer", "credentials_file": str(cluster.run_dir / "secret")}
    found = {"url": cluster.url + "/raylane/http_sd", "refresh_interval": "1s", "authorization": authorization}
    every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config: dict[str, Any] = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(one) for one in rules],
        "scrape_configs": [
            {"job_name": "raylane", **every, "http_sd_configs": [found], "authorization": authorization},
            {"job_name": "also", **every, "static_configs": list(also)},
        ],
    }
    if alertmanager:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    folder = Path(tempfile.mkdtemp(prefix="raylane-prometheus-"))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    options = ("--config.file=config.yaml", "--storage.tsdb.path=data", f"--web.listen-address={address}")
    with _process("prometheus", folder, path, *options):
        yield f"http://{address}"
    shutil.rmtree(folder)


@contextmanager
def alertmanager() -> Iterator[str]:
    """Its address."""
    path, address = _installed("prometheus-alertmanager", "prometheus-alertmanager"), f"127.0.0.1:{free_port()}"
    folder = Path(tempfile.mkdtemp(prefix="raylane-alertmanager-"))
    (folder / "config.yaml").write_text(yaml.safe_dump({"route": {"receiver": "all"}, "receivers": [{"name": "all"}]}))
    options = ("--config.file=config.yaml", "--storage.path=data", f"--web.listen-address={address}")
    with _process("alertmanager", folder, path, *options, "--cluster.listen-address="):
        eventually(lambda: requests.get(f"http://{address}/-/ready", timeout=5).ok, 30)
        yield address
    shutil.rmtree(folder)


def samples(url: str, query: str) -> list[dict[str, Any]]:
    """What a query finds: each sample's `metric` and `value`. None while Prometheus does not answer."""
    try:
        answer: Any = requests.get(url + "/api/v1/query", params={"query": query}, timeout=10).json()
    except requests.RequestException:
        return []
    assert answer["status"] == "success", (query, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def shortened(folder: Path, factor: int) -> list[Path]:
    """The shipped rules with windows and waits `factor` times as short."""

    def shorter(match: re.Match[str]) -> str:
        return f"{match['before']}{int(match['number']) * _SECONDS[match['unit']] // factor}s"

    found = []
    for file in sorted((ROOT / "infra" / "alerts").glob("*.yaml")):
        found.append(folder / file.name)
        found[-1].write_text(_DURATION.sub(shorter, file.read_text(encoding="utf-8")), encoding="utf-8")
    return found
