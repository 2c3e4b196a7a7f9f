"""A model from S3: two replicas that start at the same time, one download, and leases while they run."""

import shutil
from pathlib import Path

import pytest
import requests

from cluster.artifacts import ArtifactError, ModelCache
from tests.live.cluster import ROOT, held, local_spec
from tests.s3.proxy import proxy_of
from tests.s3.server import s3_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_two_replicas_of_a_model_from_s3_download_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("swift", reason="the S3 server (PyPI `swift`) is not installed")
    target = ROOT / "infra/demo/target"
    spec = local_spec()
    spec["models"][0]["source"] = "s3://models/demo/1"
    spec["artifacts"] = {"cache": str(tmp_path / "cache")}
    with s3_server(tmp_path / "s3") as server, proxy_of(server.endpoint) as proxy:
        client = server.client()
        client.create_bucket(Bucket="models")
        files = [path for path in target.rglob("*") if path.is_file()]
        for path in files:
            client.put_object(Bucket="models", Key=f"demo/1/{path.relative_to(target)}", Body=path.read_bytes())
        for name, value in server.environment(proxy.endpoint).items():
            monkeypatch.setenv(name, value)
        (tmp_path / "run").mkdir()
        with held(tmp_path / "run", "artifacts", spec) as cluster:
            assert len(cluster.replicas()) == 2
            assert proxy.sent() == sum(path.stat().st_size for path in files)
            body = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 8}
            assert requests.post(cluster.url + "/v1/completions", json=body, timeout=60).status_code == 200
            cache = ModelCache(tmp_path / "cache")
            (entry,) = cache.list()
            assert (entry.whole, entry.in_use) == (True, True)
            with pytest.raises(ArtifactError, match="a running process uses it"):
                cache.evict(entry.name)
        assert not cache.list()[0].in_use
    shutil.rmtree(tmp_path / "s3")
