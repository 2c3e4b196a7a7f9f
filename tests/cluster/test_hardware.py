"""Hardware facts: the shipped tables are whole, a spec's own entries come before them, and bad ones are named."""

import csv
from pathlib import Path

import pytest

import cluster.hardware
from cluster.hardware import GPUS, Gpu, Hardware, InstancePrice, Link, gpu_named, instances
from cluster.spec import SpecError, parse_spec

FOLDER = Path(cluster.hardware.__file__).parent
SPEC = """
version: 1
name: team
regions: [{name: here, pools: [{name: gpus, accelerator: H100, gpus_per_node: 1}]}]
models: [{name: m, source: demo, settings: {max_model_len: 100}}]
"""
OWN = "{name: MINE, title: Mine, capability: 90, memory_bytes: 20000000000, "
OWN += "memory_bytes_per_s: 1.0e+12, bf16_flops: 1.0e+14, link_bytes_per_s: 3.0e+10}"


def test_every_gpu_has_figures_that_can_be_and_a_dated_source() -> None:
    for name, gpu in GPUS.items():
        assert name == gpu.name == name.lower()
        assert gpu.source, name
        assert gpu.date, name
        assert 0.95 * gpu.memory_bytes < gpu.total_bytes <= gpu.memory_bytes, name
        assert (gpu.fp8_flops is not None) == (gpu.capability >= 89), name
        assert (gpu.fp4_flops is not None) == (gpu.capability >= 100), name
        assert gpu.fp8_flops is None or gpu.fp8_flops > 1.9 * gpu.bf16_flops, name
    assert {"rtx-3090", "rtx-4090", "rtx-5090", "h100", "l40s"} <= GPUS.keys()


def test_quantizations_run_by_compute_capability() -> None:
    assert gpu_named("RTX-4090").runs("fp8")
    assert gpu_named("A100-80G").runs("fp8")
    assert not gpu_named("t4").runs("mxfp4")
    assert gpu_named("t4").runs("awq")


def test_all_tables_read_and_agree() -> None:
    known = instances()
    assert all(instance.gpu in GPUS and 1 <= instance.gpus <= 8 for instance in known.values())
    for name in ("prices.csv", "spot.csv"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert text.startswith("# "), "its source"
        for row in csv.DictReader(text.splitlines()[1:]):
            price = Hardware().price(row["instance"], row["region"])
            assert price is not None
            assert price.source
            assert row["instance"] in known
            if name == "spot.csv":
                assert price.interrupted in ("<5%", "5-10%", "10-15%", "15-20%", ">20%")
            else:
                assert price.on_demand_usd is not None
                assert price.spot_usd is None or price.spot_usd <= 1.01 * price.on_demand_usd


def test_prices_and_links_of_known_places() -> None:
    price = Hardware().price("p5.48xlarge", "us-east-1")
    assert price is not None
    assert price.on_demand_usd == 55.04
    assert price.interrupted == ">20%"
    assert price.reserved_usd is None
    assert Hardware().price("p5.48xlarge", "nowhere") is None
    link = Hardware().link("us-east-1", "eu-west-1")
    assert (link.rtt_ms, link.usd_per_gb) == (84.9, 0.02)
    assert Hardware().link("eu-west-1", "us-east-1").rtt_ms is not None, "either way"
    assert Hardware().link("us-east-1", "here") == Link(source="us-east-1", target="here", usd_per_gb=0.02)


def test_a_specs_own_entries_come_first() -> None:
    text = f"hardware: {{gpus: [{OWN}], prices: [{{instance: box, region: here, on_demand_usd: 3}}], "
    text += "links: [{source: us-east-1, target: eu-west-1, rtt_ms: 70}]}"
    hardware = parse_spec(SPEC + text).hardware
    assert isinstance(hardware.gpu_named("mine"), Gpu)
    assert hardware.price("box", "here") == InstancePrice(instance="box", region="here", on_demand_usd=3)
    assert hardware.link("us-east-1", "eu-west-1") == Link(
        source="us-east-1", target="eu-west-1", rtt_ms=70, usd_per_gb=0.02
    )
    with pytest.raises(ValueError, match=r"'nope' is unknown; allowed: .*MINE.*hardware\.gpus"):
        hardware.gpu_named("nope")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{gpus: [{name: x}]}", r"hardware\.gpus\.0\.name = 'x': allowed: .*of the form"),
        (f"{{gpus: [{OWN.replace('90', '9')}]}}", r"hardware\.gpus\.0\.capability = 9: allowed: .*50 to 200"),
        (f"{{gpus: [{OWN.replace('bf16_flops', 'bf16_flop')}]}}", r"hardware\.gpus\.0\.bf16_flop = 1.*: unknown key"),
        ("{prices: [{instance: a, region: b, interrupted: often}]}", r"interrupted = 'often': allowed: <5%"),
        ("{links: [{source: a}]}", r"links\.0\.target: missing"),
    ],
)
def test_bad_entries_are_named(section: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse_spec(f"{SPEC}hardware: {section}")
