"""`raylane drill`: a simulated drill from end to end, and errors that name the option."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cli.drill.local_cells import cell_spec
from cli.main import app
from cluster.files import shipped
from cluster.spec import load_spec, parse_spec

SPEC = shipped("specs/three-regions.yaml")


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["drill", *arguments], env={"COLUMNS": "300"})
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.whole
def test_a_simulated_drill_prints_writes_and_draws(tmp_path: Path) -> None:
    page = tmp_path / "drill.html"
    code, out, errors = run(
        "region-loss", str(SPEC), "--load", "0.5", "--at", "20", "--length", "60", "--json", "--report", str(page)
    )
    assert code == 0, errors
    found = json.loads(out)
    assert found["drill"] == {
        "kind": "region-loss",
        "cell": "eu",
        "others": [],
        "at_s": 20.0,
        "heals_s": None,
        "length_s": 60.0,
    }
    assert found["live"] is None
    assert found["simulated"]["lost"]["reset"] > 0
    assert found["rtt_ms"] == {"eu:us": 50.0, "ap:eu": 50.0, "ap:us": 50.0}
    assert "region-loss of eu" in page.read_text(encoding="utf-8")


@pytest.mark.whole
def test_a_person_gets_tables() -> None:
    code, out, errors = run(
        "slow-link",
        str(SPEC),
        "--rate",
        "eu=3,us=1,ap=1",
        "--cell",
        "eu",
        "--other",
        "us",
        "--rtt-ms",
        "40",
        "--rtt-ms",
        "eu:ap=80",
        "--more-rtt-ms",
        "300",
        "--at",
        "10",
        "--for",
        "10",
        "--length",
        "40",
    )
    assert code == 0, errors
    assert "slow-link of eu" in out
    for words in ("time until the SLO held again", "replica-seconds", "after the fault", "all cells"):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such-kind", str(SPEC)), "region-loss"),
        (("region-loss", str(SPEC), "--cell", "mars"), "--cell 'mars': not a region of the spec; allowed: eu, us, ap"),
        (("partition", str(SPEC), "--other", "mars"), "--other 'mars': not a region"),
        (("partition", str(SPEC), "--other", "eu"), "--other 'eu': is --cell as well"),
        (("brown-out", str(SPEC), "--other", "us"), "--other: allowed with partition and slow-link only"),
        (("region-loss", str(SPEC), "--at", "90"), "--at 90: allowed: below --length 90"),
        (("region-loss", str(SPEC), "--share", "0.5"), "--share 0.5: allowed with zone-loss only"),
        (("region-loss", str(SPEC), "--speed", "0.5"), "--speed 0.5: allowed with brown-out only"),
        (("partition", str(SPEC), "--more-rtt-ms", "9"), "--more-rtt-ms 9: allowed with slow-link only"),
        (("region-loss", str(SPEC), "--load", "mars=1"), "--load 'mars=1': region 'mars' is not in the spec"),
        (("region-loss", str(SPEC), "--load", "eu=1"), "--load: nothing is said of us, ap"),
        (("region-loss", str(SPEC), "--load", "much"), "--load 'much': allowed: 0 to 100"),
        (("region-loss", str(SPEC), "--rate", "1", "--load", "1"), "--rate together with --load"),
        (("region-loss", str(SPEC), "--rate", "0.01"), "--length 90: "),
        (("region-loss", str(SPEC), "--rtt-ms", "eu:mars=5"), "--rtt-ms 'eu:mars=5': allowed: MS, or A:B=MS"),
        (("region-loss", str(SPEC), "--rtt-ms", "-1"), "--rtt-ms '-1': allowed: 0 to 10000"),
        (("region-loss", str(SPEC), "--input-tokens", "long"), "--input-tokens 'long' is no length"),
        (("region-loss", str(SPEC), "--input-tokens", "40000"), "the model's context has 32,768"),
        (("region-loss", str(SPEC), "--model", "gpt"), "--model 'gpt': not in the spec"),
        (("region-loss", str(SPEC), "--endpoint", "eu=http://x"), "--endpoint: missing for us, ap"),
        (("region-loss", str(SPEC), "--endpoint", "eu"), "--endpoint 'eu': allowed: REGION=http(s)://HOST:PORT"),
        (("region-loss", str(SPEC), "--begin-command", "true"), "--begin-command and --end-command: allowed with"),
        (("region-loss", str(SPEC), "--report", "/no/such/place.html"), "--report /no/such/place.html"),
        (("region-loss", str(shipped("specs/local.yaml"))), "peering: missing"),
    ],
)
def test_what_cannot_be_is_said_with_the_option(arguments: tuple[str, ...], message: str) -> None:
    rate = () if {"--load", "--rate"} & set(arguments) else ("--rate", "1")
    code, _, errors = run(*arguments, *rate)
    assert code == 2
    assert message in errors


OWN = ("--endpoint", "eu=http://a", "--endpoint", "us=http://b", "--endpoint", "ap=http://c", "--rate", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("region-loss", str(SPEC), *OWN), "--endpoint: allowed with --live only"),
        (("region-loss", str(SPEC), *OWN, "--live"), "--begin-command: missing"),
        (("partition", str(SPEC), *OWN, "--live", "--begin-command", "true"), "--end-command: missing"),
        (
            ("region-loss", str(SPEC), *OWN, "--live", "--begin-command", "true", "--api-key-env", "NO_SUCH_KEY"),
            "--api-key-env 'NO_SUCH_KEY': is not set",
        ),
    ],
)
def test_the_users_own_cells_need_the_users_own_commands(arguments: tuple[str, ...], message: str) -> None:
    code, _, errors = run(*arguments)
    assert code == 2
    assert message in errors


def test_a_cells_spec_is_its_own_and_has_the_links_as_endpoints(tmp_path: Path) -> None:
    spec = load_spec(SPEC)
    endpoints = {"eu": "http://127.0.0.1:9001", "us": "http://127.0.0.1:9102", "ap": "http://127.0.0.1:9103"}
    content = cell_spec(spec, spec.models[0].name, "drill", endpoints, 9001, tmp_path / "t.jsonl", tmp_path / "peers")
    read = parse_spec(yaml.safe_dump(content))
    assert {region.name: region.endpoint for region in read.regions} == endpoints
    assert (read.gateway.host, read.gateway.port, read.gateway.replicas) == ("127.0.0.1", 9001, 1)
    assert read.peering is not None
    assert read.peering.secret is not None
    assert read.peering.secret.folder == str(tmp_path / "peers")
    (model,) = read.models
    assert (model.replicas.count, model.replicas.max) == (2, None)
    assert model.simulated is not None
    assert Path(model.simulated.costs).is_absolute()
