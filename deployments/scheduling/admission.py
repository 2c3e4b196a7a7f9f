"""What `Scheduler.submit` answers."""

from dataclasses import dataclass

from deployments.scheduling.reasons import AdmissionKind, RejectCause


@dataclass(frozen=True, slots=True)
class Admission:
    """`ahead_tokens` is the work that waits before it, `retry_after_s` (rejections only) when that work will be done at the measured rate."""

    kind: AdmissionKind
    cause: RejectCause | None = None
    ahead_tokens: int = 0
    retry_after_s: float | None = None

    @property
    def accepted(self) -> bool:
        """Whether the request now waits in its lane."""
        return self.kind in (AdmissionKind.ADMIT, AdmissionKind.QUEUE)
