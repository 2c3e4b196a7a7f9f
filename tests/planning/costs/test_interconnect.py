"""Exchanges between GPUs: measured ones are read back, others follow the link."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.hardware import GPUS, exchange_table, gpu_named
from planning.costs.interconnect import Interconnect, layers_s
from planning.fit.memory import Parallel

OWN = replace(gpu_named("rtx-pro-6000"), link_bytes_per_s=16e9, link_latency_s=20e-6)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@pytest.mark.parametrize("gpu", ["a100-80g", "h100", "l40s", "rtx-pro-6000"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_measured_exchanges_are_read_back_and_grow_with_their_size(gpu: str, kind: str, gpus: int) -> None:
    points = exchange_table(gpu, kind, gpus)  # type: ignore[arg-type]  # one of KINDS
    link = Interconnect(gpu_named(gpu))
    assert len(points) == 9
    assert link.source == gpu
    for size, seconds in points:
        assert link.exchange_s(kind, gpus, size) == pytest.approx(seconds)  # type: ignore[arg-type]
    assert points[-1][1] > points[4][1] > points[0][1]


@given(st.sampled_from(sorted(GPUS)), st.sampled_from(KINDS), st.integers(2, 16), st.floats(1, 1e9))
def test_every_gpu_has_exchanges_and_larger_ones_take_hardly_less(name: str, kind: str, gpus: int, size: float) -> None:
    link = Interconnect(GPUS[name])
    assert 0 < link.exchange_s(kind, gpus, size) <= 1.1 * link.exchange_s(kind, gpus, 2 * size)  # type: ignore[arg-type]


def test_an_own_link_is_a_ring() -> None:
    link = Interconnect(OWN)
    assert link.source == ""
    assert link.exchange_s("all_reduce", 2, 16e6) == pytest.approx(2 * (20e-6 + 8e6 / 16e9))
    assert link.exchange_s("all_gather", 4, 16e6) == pytest.approx(3 * (20e-6 + 4e6 / 16e9))
    assert link.exchange_s("all_reduce", 1, 16e6) == 0


def test_a_gpu_without_a_table_takes_that_of_its_kind_by_the_links() -> None:
    h200, b200 = Interconnect(gpu_named("h200")), Interconnect(gpu_named("b200"))
    assert h200.source == b200.source == "h100"
    large = 1 << 26
    assert b200.exchange_s("all_reduce", 8, large) < h200.exchange_s("all_reduce", 8, large)


def test_a_dense_layer_sums_twice_and_one_gpu_exchanges_nothing() -> None:
    link = Interconnect(OWN)
    one_sum = link.exchange_s("all_reduce", 2, 100 * 4_096 * 2)
    assert layers_s(link, Parallel(2), 4_096, 100, 32, 0) == pytest.approx(65 * one_sum)
    assert layers_s(link, Parallel(), 4_096, 100, 32, 0) == 0


def test_copies_of_the_attention_gather_and_scatter_for_their_experts() -> None:
    link = Interconnect(gpu_named("h100"))
    alone = layers_s(link, Parallel(), 4_096, 100, 0, 10)
    copies = layers_s(link, Parallel(data=8, experts=True), 4_096, 100, 0, 10)
    size = 8 * 100 * 4_096 * 2
    both = link.exchange_s("all_gather", 8, size) + link.exchange_s("reduce_scatter", 8, size)
    assert (alone, copies) == (0, pytest.approx(10 * both))


def test_stages_hand_on_what_they_computed() -> None:
    link = Interconnect(OWN)
    assert layers_s(link, Parallel(pipeline=3), 4_096, 90, 32, 0) == pytest.approx(2 * link.send_s(30 * 4_096 * 2))
