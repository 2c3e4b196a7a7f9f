"""The spec's peers: endpoints, the peers' secret or mutual TLS, residency. A spec without them is as before."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.spec import ClusterSpec, parse_spec
from tests.cluster.test_cluster_spec_refusals import problem


def spec_text(**changes: Any) -> str:
    """Three regions with peers; `changes` replace sections."""
    content: dict[str, Any] = {
        "name": "x",
        "regions": [
            {"name": name, "endpoint": f"https://{name}.example.org", "pools": [{"name": "p"}]}
            for name in ("eu", "us", "ap")
        ],
        "models": [{"name": "m", "source": "s", "settings": {"max_model_len": 100}}],
        "peering": {"secret": {"kind": "aws", "name": "raylane/x/peers"}},
    }
    content.update(changes)
    return yaml.safe_dump({key: value for key, value in content.items() if value is not None})


def region(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "pools": [{"name": "p"}], **more}


def test_a_spec_with_peers() -> None:
    spec = parse_spec(spec_text())
    assert spec.peering is not None
    assert spec.peering.secret is not None
    assert (spec.peering.secret.kind, spec.peering.secret.name) == ("aws", "raylane/x/peers")
    assert spec.peering.hand_over.margin_s == 0.1
    assert spec.region("us").endpoint == "https://us.example.org"
    assert ClusterSpec.model_validate(spec.model_dump()) == spec


def test_a_spec_without_peers_says_nothing_of_them() -> None:
    """So that what is deployed, compared and logged of such a spec does not change."""
    spec = parse_spec(spec_text(peering=None, regions=[region("eu"), region("us")]))
    assert spec.peering is None
    content = str(spec.model_dump(mode="json", exclude_defaults=True))
    for word in ("peering", "endpoint", "residency", "peers", "prefers"):
        assert word not in content


def test_peers_by_mutual_tls_or_on_loopback() -> None:
    tls = {"cert": "/c.pem", "key": "/k.pem", "ca": "/ca.pem"}
    assert parse_spec(spec_text(peering={"tls": tls})).peering is not None
    near = [region("a", endpoint="http://127.0.0.1:8001"), region("b", endpoint="http://[::1]:8002")]
    assert parse_spec(spec_text(regions=near)).peering is not None
    far = [region("a", endpoint="http://10.0.0.1:8000"), region("b", endpoint="http://10.0.1.1:8000")]
    peering = {"secret": {"kind": "file"}, "plaintext": True}
    assert parse_spec(spec_text(regions=far, peering=peering)).peering is not None


def test_files_are_beside_the_spec(tmp_path: Path) -> None:
    tls = {"cert": "c.pem", "key": "/k.pem", "ca": "ca.pem"}
    spec = parse_spec(spec_text(peering={"tls": tls}), folder=tmp_path)
    assert spec.peering is not None
    assert spec.peering.tls is not None
    assert (spec.peering.tls.ca, spec.peering.tls.key) == (str(tmp_path / "ca.pem"), "/k.pem")


REFUSED = [
    ({"peering": {}}, "secret and tls: both missing; needed: a secret that the cells share, or mutual TLS"),
    ({"peering": {"secret": "hunter2-hunter2"}}, "peering.secret = 'hunter2-hunter2': allowed: a mapping of kind"),
    ({"peering": {"secret": {"kind": "file"}, "max_age_s": 1.0}}, "max_age_s = 1: allowed: above digest_period_s = 1"),
    (
        {"peering": {"secret": {"kind": "file"}, "hand_over": {"max_load": 0}}},
        "peering.hand_over.max_load = 0: allowed: a number, above 0, at most 1",
    ),
    ({"regions": [region("eu", endpoint="https://a")]}, "the only region is eu; needed: at least two regions"),
    ({"regions": [region("eu", endpoint="https://a"), region("us")]}, "regions.us.endpoint: missing; `peering` needs"),
    (
        {"regions": [region("eu", endpoint="https://a"), region("us", endpoint="https://a")]},
        "regions.us.endpoint = 'https://a': allowed: another one than that of eu",
    ),
    (
        {"regions": [region("eu", endpoint="https://a"), region("us", endpoint="http://b")]},
        "regions.us.endpoint = 'http://b': prompts would cross the network in plain text; allowed: https://",
    ),
    (
        {"regions": [region("eu", endpoint="https://a/v1")], "peering": None},
        "regions.0.endpoint = 'https://a/v1': allowed: a text of the form",
    ),
    (
        {
            "peering": {"secret": {"kind": "file"}, "plaintext": True, "tls": {"cert": "/c", "key": "/k", "ca": "/ca"}},
            "regions": [region("eu", endpoint="http://a"), region("us", endpoint="http://b")],
        },
        "regions.eu.endpoint = 'http://a': allowed: https://, since peering.tls is set",
    ),
    (
        {"classes": [{"name": "batch", "ttft_ms": 1, "residency": ["mars"]}]},
        "classes.batch.residency = 'mars': unknown; allowed: eu, us, ap",
    ),
    (
        {"classes": [{"name": "batch", "ttft_ms": 1, "prefers": "luck"}]},
        "classes.0.prefers = 'luck': allowed: speed, price",
    ),
    (
        {"tenants": [{"name": "t", "keys": ["sha256:" + "0" * 64], "residency": []}]},
        "tenants.0.residency = []: allowed: a list of at least 1",
    ),
    (
        {"tenants": [{"name": "t", "keys": ["sha256:" + "0" * 64], "peers": ["mars"]}]},
        "tenants.t.peers = 'mars': unknown; allowed: eu, us, ap",
    ),
    (
        {"models": [{"name": "m", "source": "s", "settings": {"max_model_len": 100}, "residency": ["eu", "us"]}]},
        "models.m.residency: leaves out ap, where the model runs; needed: that region in it, or `regions` without it",
    ),
]


@pytest.mark.parametrize(("changes", "reported"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(changes: dict[str, Any], reported: str) -> None:
    assert reported in problem(spec_text(**changes))


def test_residency_that_leaves_a_region_out_where_the_model_does_not_run() -> None:
    model = {"name": "m", "source": "s", "settings": {"max_model_len": 100}, "residency": ["eu"], "regions": ["eu"]}
    assert parse_spec(spec_text(models=[model])).model("m").residency == ("eu",)
