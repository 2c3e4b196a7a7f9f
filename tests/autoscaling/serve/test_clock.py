import time

from autoscaling.serve.scaling import Clock


def test_it_goes_on_from_an_earlier_clock() -> None:
    unix_ns = time.time_ns() - 7 * 10**9
    ns, now = Clock(10**18, unix_ns).now()
    assert ns - 10**18 >= 7 * 10**9
    assert now >= unix_ns + 7 * 10**9


def test_it_never_runs_backwards_even_where_the_time_of_day_did() -> None:
    clock = Clock(10**18, time.time_ns() + 10**12)
    assert clock.now()[0] > 10**18
    assert clock.now()[0] <= clock.now()[0]
