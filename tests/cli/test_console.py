"""How long, as people write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.console import seconds_of, shown_span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("1d", 86_400), ("7d", 604_800), (" 0.5h ", 1_800)],
)
def test_what_can_be_written(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "30", "m", "30x", "-5m", "0s", "8d", "169h", "1h30m", "1e3s", "inf", "30 m", "½h", "0.9s", "0.0000001s"],
)
def test_errors_name_the_value_and_what_is_allowed(text: str) -> None:
    with pytest.raises(
        ValueError, match="allowed: a number and its unit, as in 90s, 30m, 2h or 1d; at least 1s, at most 7d"
    ) as caught:
        seconds_of(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (-3, "0s"), (42, "42s"), (60, "1m"), (3_900, "1h 5m"), (90_061, "1d 1h"), (3_601, "1h 1s")],
)
def test_how_it_is_shown(seconds: float, text: str) -> None:
    assert shown_span(seconds) == text


@given(st.integers(1, 604_800))
def test_whole_seconds_are_understood(seconds: int) -> None:
    assert seconds_of(f"{seconds}s") == seconds
