"""Which ends are planned."""

from deployments.cell.departure import DepartureCause


def test_the_planned_causes() -> None:
    assert [cause for cause in DepartureCause if cause.planned] == [
        DepartureCause.STOPPED,
        DepartureCause.DRAINED,
        DepartureCause.SPOT_NOTICE,
    ]
