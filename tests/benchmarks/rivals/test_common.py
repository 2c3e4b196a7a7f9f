"""Windows of samples."""

from benchmarks.policies.rivals.common import SampleWindow


def test_samples_leave_when_they_are_as_old_as_the_span() -> None:
    window = SampleWindow(10.0)
    assert window.mean == 0
    for at, value in ((0.0, 4.0), (5.0, 6.0), (9.5, 8.0)):
        window.add(at, value)
    assert window.mean == 6
    window.add(10.0, 1.0)
    assert window.samples() == ((5.0, 6.0), (9.5, 8.0), (10.0, 1.0))
    assert window.since(5.0) == [8.0, 1.0]


def test_after_a_gap_only_the_new_sample_is_left() -> None:
    window = SampleWindow(10.0)
    window.add(0.0, 4.0)
    window.add(1_000.0, 2.0)
    assert window.mean == 2
