"""Replicas as the directory hears of them."""

from dataclasses import replace
from fractions import Fraction

from deployments.accounting.facts import NS, ReplicaBegun, ReplicaGone, ReplicaReady, ReplicasAlive, Tariff
from deployments.accounting.lives import ReplicaLives

TARIFF = Tariff(1, "m", "default", "here", "h100", 1, Fraction(3), "", 2_048, 4.0)


def test_a_life_from_start_to_end() -> None:
    lives = ReplicaLives()
    assert lives.starting("r", "m", "default", 5) == [ReplicaBegun(5, "r", "m")]
    assert lives.starting("r", "m", "default", 7) == []
    assert lives.serving("r", "m", "default", 9) == [ReplicaReady(9, "r")]
    assert lives.serving("r", "m", "default", 11) == []
    assert lives.alive(12) == ReplicasAlive(12, ("r",))
    assert lives.gone("r", 13) == [ReplicaGone(13, "r")]
    assert lives.gone("r", 14) == []
    assert lives.carried(14) == []


def test_only_an_earlier_beginning_is_news() -> None:
    lives = ReplicaLives()
    lives.serving("r", "m", "default", 90 * NS)
    assert lives.starting("r", "m", "default", 89 * NS + 1) == []
    assert lives.starting("r", "m", "default", 60 * NS) == [ReplicaBegun(60 * NS, "r", "m")]
    assert lives.serving("r", "m", "default", 95 * NS) == []


def test_starts_that_were_stopped_have_ended() -> None:
    lives = ReplicaLives()
    for name in ("a", "b", "c"):
        lives.starting(name, "m", "default", 5)
    lives.serving("c", "m", "default", 6)
    assert lives.stopped({"a"}, 9) == [ReplicaGone(9, "b")]


def test_the_same_price_again_is_no_news() -> None:
    lives = ReplicaLives()
    assert lives.priced([TARIFF]) == [TARIFF]
    assert lives.priced([replace(TARIFF, at_ns=9)]) == []
    dearer = replace(TARIFF, at_ns=10, usd_per_hour=Fraction(4))
    assert lives.priced([dearer]) == [dearer]
    assert lives.carried(0) == [dearer]
