"""`raylane endpoints`: which regions, in which order, and how each is as the command sees it."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.endpoints import allowed_regions, preferred
from cluster.spec import ClusterSpec, parse_spec
from tests.commands import ran
from tests.http_server import Handler, listening, saying

KEY = "sha256:" + "0" * 64


def content(**endpoints: str) -> dict[str, Any]:
    """Regions of AWS by those names, with these endpoints."""
    names = [name.replace("_", "-") for name in endpoints]
    model = {"source": "s", "settings": {"max_model_len": 1_000}}
    return {
        "name": "x",
        "regions": [
            {"name": name, "endpoint": endpoint, "pools": [{"name": "p"}]}
            for name, endpoint in zip(names, endpoints.values(), strict=True)
        ],
        "models": [model | {"name": "wide"}, model | {"name": "narrow", "regions": names[:1]}],
        "tenants": [
            {"name": "clinic", "keys": [KEY], "residency": ["eu-central-1", "eu-west-1"]},
            {"name": "trial", "keys": [KEY[:-1] + "1"]},
        ],
        "classes": [
            {"name": "interactive", "ttft_ms": 500},
            {"name": "us", "ttft_ms": 500, "residency": ["us-east-1"]},
        ],
        "peering": {"secret": {"kind": "file"}},
    }


def make_spec(**changes: Any) -> ClusterSpec:
    names = ("us_east_1", "ap_northeast_1", "eu_central_1", "eu_west_1")
    endpoints = {name: f"https://{name.replace('_', '-')}.llm.example.org" for name in names}
    return parse_spec(yaml.safe_dump(content(**endpoints) | changes))


def regions(spec: ClusterSpec, home: str, **names: str) -> list[str]:
    return [one.region for one in preferred(spec, spec.region(home), allowed_regions(spec, **names))]


def test_home_is_first_then_the_nearest() -> None:
    spec = make_spec()
    assert regions(spec, "eu-central-1") == ["eu-central-1", "eu-west-1", "us-east-1", "ap-northeast-1"]
    assert regions(spec, "ap-northeast-1")[:2] == ["ap-northeast-1", "us-east-1"]
    (first, second, *_) = preferred(spec, spec.region("eu-central-1"), allowed_regions(spec))
    assert (first.rtt_ms, first.url) == (0.0, "https://eu-central-1.llm.example.org/v1")
    assert second.rtt_ms is not None
    assert 10 < second.rtt_ms < 40


def test_a_link_of_the_spec_comes_before_the_table_and_an_unknown_one_last() -> None:
    links = [{"source": "us-east-1", "target": "ap-northeast-1", "rtt_ms": 1.0}]
    assert regions(make_spec(hardware={"links": links}), "us-east-1")[:2] == ["us-east-1", "ap-northeast-1"]
    spec = parse_spec(
        yaml.safe_dump(
            content(eu_central_1="https://a.x", basement="https://b.x", eu_west_1="https://c.x", attic="https://d.x")
            | {"tenants": [], "classes": [{"name": "interactive", "ttft_ms": 500}]}
        )
    )
    assert regions(spec, "eu-central-1") == ["eu-central-1", "eu-west-1", "basement", "attic"]


def test_residency_leaves_regions_out() -> None:
    spec = make_spec()
    assert regions(spec, "us-east-1", tenant="clinic") == ["eu-west-1", "eu-central-1"]
    assert regions(spec, "eu-west-1", model="narrow") == ["us-east-1"]
    assert regions(spec, "eu-west-1", traffic_class="us", tenant="trial") == ["us-east-1"]
    with pytest.raises(ValueError, match="no region may serve all that is named"):
        regions(spec, "eu-west-1", traffic_class="us", tenant="clinic")


def test_the_path_before_v1_is_the_gateways() -> None:
    spec = make_spec(gateway={"root_path": "/llm"})
    assert preferred(spec, spec.regions[0], frozenset({"eu-west-1"}))[0].url.endswith(".example.org/llm/v1")


class Ready(Handler):
    def do_GET(self) -> None:
        assert self.path == "/ready?model=*"
        self.answer(200, b'{"status": "ready"}')


STARTING = b'{"status": "starting", "models_without_replica": ["wide"]}'


@pytest.fixture
def spec_file(tmp_path: Path) -> Iterator[Path]:
    """One region that is ready, one that is not, one that refuses, one that accepts and says nothing."""
    with ExitStack() as ends:
        hole = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        refusing = ends.enter_context(socket.socket())
        refusing.bind(("127.0.0.1", 0))  # for as long as it listens to nobody
        found = content(
            eu_central_1=ends.enter_context(listening(Ready)),
            eu_west_1=ends.enter_context(listening(saying(STARTING, 503))),
            us_east_1=f"http://127.0.0.1:{refusing.getsockname()[1]}",
            ap_northeast_1=f"http://127.0.0.1:{hole.getsockname()[1]}",
        )
        file = tmp_path / "spec.yaml"
        file.write_text(yaml.safe_dump(found), encoding="utf-8")
        yield file


def run(*arguments: object, code: int = 0, columns: int = 200) -> str:
    result = ran("endpoints", *arguments, code=code, columns=columns)
    return result.stdout + result.stderr


def test_health_is_what_the_command_sees_and_nothing_hangs(spec_file: Path) -> None:
    begun_s = time.monotonic()
    found = json.loads(run(spec_file, "--json", "--within", "0.3"))
    assert time.monotonic() - begun_s < 2.0
    assert found["from"] == "eu-central-1"
    assert [(one["region"], one["health"]) for one in found["endpoints"]] == [
        ("eu-central-1", "ready"),
        ("eu-west-1", "not_ready"),
        ("us-east-1", "unreachable"),
        ("ap-northeast-1", "unreachable"),
    ]
    ready, starting, refusing, silent = found["endpoints"]
    assert 0 < ready["answer_ms"] < 300
    assert starting["detail"] == "starting: no replica of wide"
    assert (refusing["answer_ms"], refusing["detail"]) == (None, "connection refused")
    assert silent["detail"] == "no answer within 0.3 s"


def test_the_table_has_a_line_for_each(spec_file: Path) -> None:
    text = run(spec_file, "--from", "us-east-1", "--within", "0.3")
    assert "endpoints for clients in us-east-1" in text
    assert next(line.split()[0] for line in text.splitlines() if "http" in line) == "us-east-1"
    assert "unreachable: connection refused" in " ".join(text.split())
    assert "ready after" in text
    assert "health" not in run(spec_file, "--no-check")


def test_an_address_is_broken_only_where_it_would_be_cut_off(spec_file: Path) -> None:
    """So that it can be copied from a narrow terminal."""
    listed = json.loads(run(spec_file, "--no-check", "--json"))["endpoints"]
    assert all(one["url"] in run(spec_file, "--within", "0.3", columns=60) for one in listed)
    narrow = run(spec_file, "--within", "0.3", columns=34)
    assert "health" in narrow, "a column that does not fit is cut off"
    assert "…" not in narrow


def test_with_none_ready_the_status_is_1(spec_file: Path) -> None:
    run(spec_file, "--class", "us", "--within", "0.3", code=1)
    run(spec_file, "--class", "us", "--no-check")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--from", "mars"), "region 'mars' is unknown; allowed: eu-central-1, eu-west-1"),
        (("--model", "x"), "model 'x' is unknown; allowed: wide, narrow"),
        (("--tenant", "x"), "--tenant 'x': unknown; allowed: clinic, trial"),
        (("--class", "x"), "--class 'x': unknown; allowed: interactive, us"),
        (("--class", "us", "--tenant", "clinic"), "no region may serve all that is named"),
    ],
)
def test_other_input_is_refused_by_name(spec_file: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in " ".join(run(spec_file, *arguments, code=2).split())


def test_all_regions_without_an_endpoint_are_named(tmp_path: Path) -> None:
    found = content(eu_central_1="https://a.x", eu_west_1="https://b.x", us_east_1="https://c.x")
    del found["peering"], found["regions"][1]["endpoint"], found["regions"][2]["endpoint"]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(found), encoding="utf-8")
    said = " ".join(run(tmp_path / "spec.yaml", code=2).split())
    assert "regions.eu-west-1.endpoint, regions.us-east-1.endpoint: missing" in said
