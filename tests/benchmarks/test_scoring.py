import numpy as np

from benchmarks.policies.scoring import recovery_s


def test_the_longest_stretch_of_broken_promises_counts() -> None:
    arrived = np.arange(0.0, 100.0, 1.0)
    kept = np.ones(100, dtype=np.bool_)
    assert recovery_s(arrived, kept, 0.99) == 0.0
    kept[20:45] = False
    kept[80] = False
    assert recovery_s(arrived, kept, 0.99) == 30.0


def test_a_gap_goes_on_with_what_was() -> None:
    arrived = np.array([0.0, 35.0])
    assert recovery_s(arrived, np.array([False, True]), 0.99) == 30.0
    assert recovery_s(np.array([]), np.array([], dtype=np.bool_), 0.99) == 0.0
