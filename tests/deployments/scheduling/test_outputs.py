"""Output lengths, worked by hand: bins, decay, the mean under a bound, the error."""

import pytest

from deployments.scheduling.learned_state import _BINS, OutputLengths, _Lengths


def learned(*tokens: int) -> _Lengths:
    """A histogram that saw these."""
    lengths = _Lengths()
    for each in tokens:
        lengths.observe(each)
    return lengths


def test_a_length_stands_for_its_bins_upper_bound() -> None:
    assert _BINS[:9] == (1, 2, 3, 4, 5, 6, 7, 8, 10)
    assert _BINS[-1] == 2**18
    assert [learned(tokens).quantile(0.5) for tokens in (0, 1, 9, 10, 11, 2**18 + 1)] == [1, 1, 10, 10, 11, 2**18]


def test_the_mean_under_a_bound() -> None:
    lengths = learned(*[4] * 15, 16)
    fours = sum(0.999**age for age in range(1, 16))
    share = fours / (fours + 1)
    assert lengths.mean(None) == pytest.approx(share * 4 + (1 - share) * 16)
    assert lengths.mean(8) == pytest.approx(share * 4 + (1 - share) * 8)
    assert lengths.mean(4) == pytest.approx(4)
    assert lengths.mean(3) == pytest.approx(3)
    assert lengths.mean(1) == 1.0
    assert lengths.mean(16) == pytest.approx(lengths.mean(None))


def test_a_quantile_is_the_length_that_so_many_do_not_exceed() -> None:
    lengths = learned(*[4, 8] * 8)
    assert lengths.quantile(0.4) == 4
    assert lengths.quantile(0.6) == 8
    assert learned(4).quantile(1.1) == _BINS[-1], "never beyond the last bin"


def test_after_the_first_fifteen_the_sums_are_renewed_every_sixteenth_time() -> None:
    lengths = learned(*[4] * 15)
    lengths.observe(1_024)
    assert lengths.mean(None) > 60
    before = lengths.mean(None)
    for _ in range(15):
        lengths.observe(1_024)
        assert lengths.mean(None) == before
    lengths.observe(1_024)
    assert lengths.mean(None) == pytest.approx((17 * 1_024 + 15 * 4) / 32, rel=0.01)


def test_weights_are_scaled_back_before_they_overflow() -> None:
    lengths = learned(*[4] * 27_700)
    assert lengths._gain < 1e12
    lengths.observe(1_024)
    assert lengths.mean(None) < 10, "one of a thousand that count"


def test_prompts_of_one_power_of_two_are_of_one_kind() -> None:
    outputs = OutputLengths()
    outputs.observe(64, 10, 16)
    assert outputs.expect(64, None) == outputs.expect(127, None) == (16, 16)
    assert outputs.expect(63, None) == outputs.expect(128, None) == (256, 256)
    assert outputs.expect(128, 100) == (100, 100)
    assert outputs.expect(128, 300) == (256, 256)
    assert outputs.expect(64, 10) == (10, 10)
    assert outputs.expect(64, 0) == (0, 0), "nothing is asked for"


def test_the_p90_is_the_ninth_of_ten() -> None:
    outputs = OutputLengths()
    for tokens in [16] * 13 + [64, 64]:
        outputs.observe(10, 0, tokens)
    assert outputs.expect(10, None)[1] == 64
    for tokens in [16] * 33:
        outputs.observe(10, 0, tokens)
    assert outputs.expect(10, None)[1] == 16


def test_the_error_is_a_slow_mean_of_how_far_off_it_was() -> None:
    outputs = OutputLengths()
    outputs.observe(10, 30, 20)
    assert outputs.error == pytest.approx(0.5)
    outputs.observe(10, 10, 20)
    assert outputs.error == pytest.approx(0.5)
    outputs.observe(10, 20, 20)
    assert outputs.error == pytest.approx(0.495)
    outputs.observe(10, 3, 0)
    assert outputs.error == pytest.approx(0.495 + 0.01 * (3 - 0.495)), "an empty answer counts as one token"
