"""A worksheet with any one field wrong is refused, by the field, the value and what is allowed."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster.files import shipped
from cluster.spec import problem_lines
from planning.worksheet.demand import WIDEST_P95, RegionRate, TokenLengths
from planning.worksheet.load import WorksheetError, load_worksheet, parse_worksheet
from planning.worksheet.sheet import Worksheet

FULL: dict[str, Any] = yaml.safe_load("""
version: 1
name: full
spec: spec.yaml
time_zone: Europe/Berlin
demand:
  - name: chat
    model: m
    class: interactive
    tenants: [search]
    rates: [{region: eu, requests_per_s: 2.5}, {region: us}]
    input_tokens: {mean: 900, p95: 2500}
    output_tokens: {values: [100, 400], weights: [2, 1]}
    prefix_share: 0.3
    growth: {percent_per_month: 5, months: 6}
    residency: [eu]
    slo: {ttft_ms: 800, itl_ms: 60, attainment: 0.95}
  - {name: recorded, model: m, class: batch, trace: {file: day.jsonl, region: eu, start_hour: 8, scale: 1.5}}
survive: {any_one_region: true, binding_share: 0.9, replica_failures: 1}
headroom: {spare_share: 0.2}
prices: {on_demand: true, spot: {max_share: 0.4}, reserved: true}
gpu_prices:
  - gpu: L4
    region: eu
    on_demand_usd_per_gpu_hour: 0.8
    spot_usd_per_gpu_hour: 0.3
    reserved_usd_per_gpu_hour: 0.5
    source: a contract, 2026-10
quotas: [{gpu: L4, region: eu, gpus: 8, price_kind: spot}]
candidates:
  - {name: small, model: m, gpu: L4, settings: {max_model_len: 8192}, lanes: [short], regions: [eu], costs: l4.json}
elsewhere: [{model: m, usd_per_input_mtok: 0.2, usd_per_output_mtok: 0.6, source: an offer}]
transfer: {prompt_bytes_per_token: 5, answer_bytes_per_token: 250}
model_configs: [{model: m, folder: m}]
""")
FULL["demand"][0]["rates"][0]["shape"] = [1.0] * 24
FULL["demand"][0]["rates"][1]["hourly_requests_per_s"] = [3.0] * 168

Place = tuple[str | int, ...]


def places(data: Any, at: Place = ()) -> Iterator[Place]:
    """All single values, by where they are."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from places(value, (*at, key))
    elif isinstance(data, list):
        for number, value in enumerate(data[:2]):
            yield from places(value, (*at, number))
    else:
        yield at


def sections(data: Any, at: Place = ()) -> Iterator[Place]:
    """All mappings but engine settings, which are vLLM's."""
    if isinstance(data, dict):
        yield at
        for key, value in data.items():
            if key != "settings":
                yield from sections(value, (*at, key))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from sections(value, (*at, number))


def at(data: Any, place: Place) -> Any:
    for step in place:
        data = data[step]
    return data


def changed(place: Place, value: Any) -> dict[str, Any]:
    copied = copy.deepcopy(FULL)
    at(copied, place[:-1])[place[-1]] = value
    return copied


def problems(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Worksheet.model_validate(data)
    return problem_lines(caught.value, Worksheet)


FIELDS = [place for place in places(FULL) if "settings" not in place]
NUMBERS = [place for place in FIELDS if isinstance(at(FULL, place), int | float) and at(FULL, place) is not True]
SIGNED = {"percent_per_month"}
REQUIRED = [
    *((key,) for key in ("name", "spec", "demand")),
    *(("demand", 0, key) for key in ("name", "model", "class", "rates", "input_tokens", "output_tokens")),
    *((("demand", 0, "rates", 0, key)) for key in ("region", "requests_per_s")),
    ("demand", 0, "rates", 1, "hourly_requests_per_s"),
    ("demand", 0, "input_tokens", "mean"),
    ("demand", 0, "output_tokens", "values"),
    *(("demand", 0, "growth", key) for key in ("percent_per_month", "months")),
    ("demand", 1, "trace"),
    ("demand", 1, "trace", "file"),
    *(("gpu_prices", 0, key) for key in ("gpu", "region")),
    *(("quotas", 0, key) for key in ("gpu", "region", "gpus")),
    *(("candidates", 0, key) for key in ("name", "model", "gpu")),
    *(("elsewhere", 0, key) for key in ("model", "usd_per_input_mtok", "usd_per_output_mtok")),
    *(("model_configs", 0, key) for key in ("model", "folder")),
]


def first(place: Place) -> Place:
    """The same field of the first item of each list."""
    return tuple(0 if isinstance(step, int) else step for step in place)


def dotted(place: Place) -> str:
    return ".".join(map(str, place))


def names(lines: list[str], place: Place) -> bool:
    """Whether a line is about that field: by its whole path, or by its section and its key."""
    key = next(step for step in reversed(place) if isinstance(step, str))
    return any(line.startswith(dotted(place)) or key in line for line in lines)


def test_the_full_worksheet_is_accepted() -> None:
    sheet = parse_worksheet(yaml.safe_dump(FULL))
    assert sheet.demand[0].factor == pytest.approx(1.05**6)
    assert set(FULL) == set(Worksheet.model_fields), "each key of a worksheet is in the generated tests"


@pytest.mark.parametrize("value", [{"unit": 5}, ["x"], None, "many", True], ids=str)
def test_a_value_of_another_kind_is_refused_by_its_field(value: Any) -> None:
    for place in FIELDS:
        refuses_kind(place, value)


def refuses_kind(place: Place, value: Any) -> None:
    own = at(FULL, place)
    text = isinstance(own, str)
    optional = value is None and isinstance(place[-1], str) and first(place) not in {first(one) for one in REQUIRED}
    if (value == "many" and text) or (value is True and own is True) or optional:
        return  # another text, the same value, or a field that may be left out
    lines = problems(changed(place, value))
    assert names(lines, place), lines
    assert any("allowed" in line for line in lines), lines


@pytest.mark.parametrize("value", [-1, -0.001, math.nan, math.inf, 1e30], ids=str)
def test_a_number_out_of_range_is_refused_by_its_field(value: float) -> None:
    for place in NUMBERS:
        if place[-1] in SIGNED and value in (-1, -0.001):
            continue
        lines = problems(changed(place, value))
        assert names(lines, place), (place, lines)
        assert any("allowed" in line for line in lines), lines


def test_a_missing_field_is_named() -> None:
    for place in REQUIRED:
        copied = copy.deepcopy(FULL)
        del at(copied, place[:-1])[place[-1]]
        lines = problems(copied)
        assert names(lines, place), (place, lines)
        assert any("allowed" in line for line in lines), lines


def test_an_unknown_key_is_refused_everywhere() -> None:
    for place in sections(FULL):
        copied = copy.deepcopy(FULL)
        at(copied, place)["surprise"] = 1
        assert any("surprise = 1: unknown key; allowed:" in line for line in problems(copied))


REFUSED = [
    (("demand", 0, "slo", "ttft_ms"), 0.8, "demand.0.slo.ttft_ms = 0.8: allowed: a number, 1 to 3600000"),
    (("demand", 0, "rates", 0, "shape"), [1, 2], "shape: 2 figures; allowed: 24 (a day) or 168"),
    (("demand", 0, "rates", 0, "shape"), [0] * 24, "shape = all zeros: allowed"),
    (("demand", 0, "rates", 0, "hourly_requests_per_s"), [1] * 24, "requests_per_s and hourly_requests_per_s"),
    (("demand", 0, "rates", 1, "region"), "eu", "rates.region: 'eu' appears twice"),
    (("demand", 0, "input_tokens", "p95"), 5000, "p95 = 5000: allowed: 900 to 3481 tokens"),
    (("demand", 0, "input_tokens", "p95"), 100, "p95 = 100: allowed: 900 to 3481 tokens"),
    (("demand", 0, "output_tokens", "weights"), [1], "weights: 1 figures; allowed: one for each of `values`"),
    (("demand", 0, "trace"), {"file": "x"}, "trace and rates: allowed: a trace, or rates with"),
    (("demand", 1, "name"), "chat", "demand.name: 'chat' appears twice"),
    (("time_zone"), "Mars/Base", "time_zone = 'Mars/Base': allowed: an IANA time zone"),
    (("prices"), {"on_demand": False, "spot": {"max_share": 0}}, "on_demand, spot.max_share, reserved: none may be"),
    (("gpu_prices", 0), {"gpu": "L4", "region": "eu"}, "on_demand_usd_per_gpu_hour, spot_usd_per_gpu_hour"),
    (("candidates", 0, "gpu"), "h100", "candidates.0.gpu = 'h100': allowed: cpu, A100-40G, A100-80G, "),
]


@pytest.mark.parametrize(("place", "value", "reported"), REFUSED)
def test_refusals_say_what_is_allowed(place: Any, value: Any, reported: str) -> None:
    place = (place,) if isinstance(place, str) else place
    lines = problems(changed(place, value))
    assert any(reported in line for line in lines), lines


@given(st.floats(1, 1e5), st.floats(1, WIDEST_P95 * 0.999))
def test_a_log_normal_has_the_p95_and_the_mean_that_are_asked_for(mean: float, wide: float) -> None:
    sigma = TokenLengths(mean=mean, p95=mean * wide).sigma
    mu = math.log(mean) - sigma**2 / 2
    assert math.exp(mu + 1.6448536 * sigma) == pytest.approx(mean * wide, rel=1e-6)


@pytest.mark.whole
@given(st.floats(0, 1e4), st.lists(st.floats(0.01, 100), min_size=24, max_size=24))
def test_a_shape_keeps_the_mean_rate(rate: float, shape: list[float]) -> None:
    hourly = RegionRate(region="eu", requests_per_s=rate, shape=tuple(shape)).hourly()
    assert sum(hourly) / 24 == pytest.approx(rate)


@pytest.mark.parametrize("path", sorted(shipped("plans").glob("*.yaml")), ids=lambda path: path.name)
def test_the_shipped_worksheets_agree_with_their_specs(path: Path) -> None:
    sheet, spec = load_worksheet(path)
    assert sheet.demand
    assert Path(sheet.spec).is_file()
    assert {stream.model for stream in sheet.demand} <= {model.name for model in spec.models}


SPEC = """
name: x
regions: [{name: eu, pools: [{name: p, accelerator: L4, gpus_per_node: 1}]}]
models: [{name: m, source: s, settings: {max_model_len: 4096}}]
"""
HEAD = "name: w\nspec: spec.yaml\n"
STREAM = (
    "demand: [{name: d, model: %s, class: %s, rates: [{region: %s, requests_per_s: 1}], input_tokens: {mean: 9}, "
    "output_tokens: {mean: 9}}]\n"
)
GOOD = STREAM % ("m", "batch", "eu")
CANDIDATE = GOOD + "candidates: [{name: c, model: m, gpu: L4, %s}]"
DISAGREEMENTS = [
    (STREAM % ("n", "batch", "eu"), "demand.0.model = 'n': the spec has none of this name; allowed: m"),
    (STREAM % ("m", "gold", "eu"), "demand.0.class = 'gold': the spec has none of this name; allowed: interactive"),
    (STREAM % ("m", "batch", "us"), "demand.0.rates.region = 'us': the spec has none of this name; allowed: eu"),
    (GOOD + "quotas: [{gpu: L999, region: eu, gpus: 1}]", "quotas.0.gpu = 'L999': GPU 'L999' is unknown; allowed: "),
    (CANDIDATE % "settings: {max_model_len: 2}", "candidates.0.settings.max_model_len = 2: allowed: a whole number"),
    (CANDIDATE % "lanes: [tiny]", "candidates.0.lanes = 'tiny': the spec has none of this name; allowed: short"),
    (CANDIDATE % "costs: none.json", "none.json': there is no such file; allowed: a cost file"),
    (GOOD + "model_configs: [{model: m, folder: none}]", "none': holds no config.json; allowed: a folder"),
    (
        "demand: [{name: d, model: m, class: batch, trace: {file: none.jsonl}}]",
        "none.jsonl': there is no such file; allowed: a trace, a traffic file, or a gateway's recording",
    ),
    (GOOD + "elsewhere: [{model: q, usd_per_input_mtok: 1, usd_per_output_mtok: 1}]", "elsewhere.0.model = 'q'"),
]


@pytest.mark.parametrize(("text", "reported"), DISAGREEMENTS)
def test_names_that_the_spec_lacks_are_refused(tmp_path: Path, text: str, reported: str) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    sheet = tmp_path / "sheet.yaml"
    sheet.write_text(HEAD + text)
    with pytest.raises(WorksheetError) as caught:
        load_worksheet(sheet)
    assert any(reported in line for line in caught.value.problems), caught.value.problems
