"""`raylane replan`: what cannot be is refused before rates are looked for. What it does is in
`tests/deployments/gateway/test_gateway_replan.py`, against real gateways."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.planning.plans import small

ENDS = ("--endpoint", "us-east-1=http://127.0.0.1:1", "--endpoint", "eu-central-1=http://127.0.0.1:2")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "regions.us-east-1.endpoint: missing; give it in the spec, or --endpoint us-east-1=URL"),
        (ENDS[:2], "regions.eu-central-1.endpoint: missing"),
        (("--endpoint", "mars=http://x"), "--endpoint mars=http://x: allowed: REGION=URL, with a region of us-east-1"),
        (("--endpoint", "us-east-1=x"), "--endpoint us-east-1=x: allowed: REGION=URL"),
        ((*ENDS, "--every", "1h"), "--every = 1h: allowed: 5s to 20m"),
        ((*ENDS, "--every", "soon"), "--every 'soon': allowed: a number and its unit"),
        ((*ENDS, "--window", "1s"), "--window = 1s: allowed: 5s to 20m"),
        ((*ENDS, "--log", "/no/such/folder/log"), "--log /no/such/folder/log: the folder /no/such/folder does not"),
        ((*ENDS, "--memo", "/no/such/folder/memo"), "--memo /no/such/folder/memo: the folder"),
        ((*ENDS, "--margin", "nan"), "--margin"),
        ((*ENDS, "--step", "0"), "--step"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    def no_rates(*given: object) -> None:
        raise AssertionError("rates were looked for")

    monkeypatch.setattr("cli.replan.command.replan_case", no_rates)
    result = CliRunner().invoke(app, ["replan", str(small.write(tmp_path)), *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    assert says in result.stderr


def test_a_worksheet_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["replan", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "none.yaml is not a usable worksheet" in result.stderr
