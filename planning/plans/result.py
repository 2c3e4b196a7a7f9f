"""All that a plan answers, in one place: the plan, its simulation, what else one could buy, and how far it may be
off."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from planning.plans.answer import TokenPrice, WorksheetPlan, token_prices
from planning.plans.check import CellCheck, SloVerdict
from planning.plans.compare import Elsewhere, SideBySide


@dataclass(frozen=True, slots=True, eq=False)
class PlanResult:
    """`errors`: by model, what is known of the simulator's error on this deployment, in words."""

    plan: WorksheetPlan
    checks: tuple[CellCheck, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    side_by_side: tuple[SideBySide, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def tokens(self) -> tuple[TokenPrice, ...]:
        """What tokens cost, by model."""
        return token_prices(self.plan) if self.plan.feasible else ()

    @property
    def verdict(self) -> SloVerdict | None:
        """The worst of all streams; None: nothing was simulated."""
        verdicts = {one.verdict for check in self.checks for one in check.streams}
        return next((one for one in reversed(SloVerdict) if one in verdicts), None)

    @property
    def good(self) -> bool:
        """Whether there is a placement that meets all SLOs, if anything arrives, and survives what it shall."""
        met = self.verdict in (SloVerdict.MET, SloVerdict.UNSURE)
        return self.plan.feasible and (met or not self.plan.groups) and not self.plan.placement.unprotected

    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        plan = self.plan
        if not plan.feasible:
            return "There is no placement that meets all requirements"
        counts = [plan.count(hour) for hour in plan.hours]
        replicas = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(max(counts))
        slo = {
            None: "nothing arrives",
            SloVerdict.MET: "all SLOs are met in the simulation",
            SloVerdict.UNSURE: "all SLOs are met in the simulation, but not if steps take as long as they may",
            SloVerdict.MISSED: "an SLO is missed in the simulation",
        }[self.verdict]
        noun = "replica" if max(counts) == 1 else "replicas"
        lost = "; the loss of any one region is not survived" if plan.placement.unprotected else ""
        return f"{replicas} {noun} for ${plan.usd_per_hour:,.2f} an hour on average; {slo}{lost}"
