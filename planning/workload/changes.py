"""What was changed between a file of requests and the traffic that is simulated: counted where it happens, and carried
with the traffic, so that nothing is left out of the answer."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class ChangeKind(StrEnum):
    """What was changed, and why."""

    FAILED_SKIPPED = "failed_skipped"
    """A request that failed when it was recorded: it has no answer that could be simulated."""
    UNCOUNTED_SKIPPED = "uncounted_skipped"
    """A request without token counts."""
    LOG_TYPE_DROPPED = "log_type_dropped"
    """BurstGPT's log type (API, conversation) is no class of service."""
    PARTIAL_BLOCK_DROPPED = "partial_block_dropped"
    """The hash of an incomplete last block of a prompt: a part of a block is not found in a cache."""
    LENGTH_RAISED = "length_raised"
    """A prompt or an answer of no tokens counts as one token."""
    SORTED = "sorted"
    """Requests that stood after a later one."""
    OUTSIDE_WINDOW = "outside_window"
    """`--from` and `--to`."""
    BEYOND_LIMIT = "beyond_limit"
    """`--limit`, and what `bench --requests` and `--duration` leave out."""
    TIME_SCALED = "time_scaled"
    """`--time-scale`."""
    THINNED = "thinned"
    """`--load-scale` below 1: requests that were left out."""
    COPIED = "copied"
    """`--load-scale` above 1: requests that were added."""
    OTHER_MODEL = "other_model"
    """Requests for another model of the spec."""
    OTHER_GROUP = "other_group"
    """Requests that another group of the model is tried first for."""
    MODEL_NAMES_IGNORED = "model_names_ignored"
    """The trace names models that the spec does not have: all requests go to the simulated one."""
    REGIONS_MERGED = "regions_merged"
    """Requests of several regions, all of which go to one cell."""
    TENANT_UNKNOWN = "tenant_unknown"
    """Requests of tenants that the spec does not name count as the anonymous one's."""
    CLASS_ASSUMED = "class_assumed"
    """Requests without a class have the first one that their tenant may claim."""
    SHRUNK = "shrunk"
    """`--fit-lengths`: lengths were multiplied by a factor below 1."""
    CLIPPED = "clipped"
    """`benchmarks.policies`: prompts and answers longer than its engines take were cut."""
    PREFIXES_CUT = "prefixes_cut"
    """Prefixes were cut into chunks of whole KV blocks; what is less than a chunk at their end is lost."""
    PREFIXES_UNUSED = "prefixes_unused"
    """The spec switches prefix caching off."""
    ONLY_LENGTHS_USED = "only_lengths_used"
    """`bench`, a rehearsal and a calibration use times and lengths alone."""
    TIMES_REPLACED = "times_replaced"
    """`bench --rate` or `--concurrency`: the trace's arrival times are not used."""
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    """Rejected: prompt and answer are longer than the model's context, as the gateway's error of that name says."""
    KV_CACHE_EXCEEDED = "kv_cache_exceeded"
    """Rejected: prompt and answer are longer than the engine's whole KV cache."""


REJECTED = frozenset((ChangeKind.CONTEXT_LENGTH_EXCEEDED, ChangeKind.KV_CACHE_EXCEEDED))
"""Requests that arrive and are answered with an error. All other kinds of dropped requests do not arrive."""


@dataclass(frozen=True, slots=True)
class TraceChange:
    """`count` of `of` requests, and in words what became of them (`what`)."""

    kind: ChangeKind
    count: int
    of: int
    what: str

    @property
    def share(self) -> float:
        """The part of the requests that there were when it happened; above 1 where more were added than there were."""
        return self.count / self.of if self.of else 0.0

    def __str__(self) -> str:
        share = 100 * self.share
        shown = "< 0.1" if 0 < share < 0.1 else f"{share:.1f}"
        return f"{self.count:,} of {self.of:,} requests ({shown} %): {self.what}"

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "change": self.kind.value,
            "requests": self.count,
            "of": self.of,
            "share": self.share,
            "rejected": self.kind in REJECTED,
            "what": self.what,
        }


def rejections(changes: Iterable[TraceChange]) -> dict[str, int]:
    """The requests that were rejected before the scheduler saw them, by reason."""
    return {one.kind.value: one.count for one in changes if one.kind in REJECTED}
