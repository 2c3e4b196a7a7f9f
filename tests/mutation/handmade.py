"""Mutants made by hand: faults of meaning that no operator of a tool makes, as a wrong order, forgotten bookkeeping, a
bound that is off by one.

Each replaces one piece of text, which must stand in its file exactly once: where the code has moved, the patch is
written anew, never dropped.
"""

from tests.mutation.handmade_ownership import OWNERSHIP
from tests.mutation.patch import patches_in

SCHEDULING = [
    *patches_in(
        "deployments/scheduling/scheduler.py",
        ("holds survive a reload", "for lane in self.lanes.all:\n            self.holds.end(lane)", "pass"),
        ("a lost replica's prefixes are kept", "self.learned_state.prefixes.forget(replica_id)", "pass"),
        ("one that waited too long counts against its tenant for ever", "self.limits.end(gone)", "pass"),
        (
            "one that is cancelled while it waits counts against its tenant for ever",
            "self.lanes.leave(job)\n        self.limits.end(job)",
            "self.lanes.leave(job)",
        ),
        ("an adopted lease is not counted among its tenant's", "self.limits.adopt(job)", "pass"),
        (
            "a first token leaves the fleet's order of load as it was",
            "self.fleet.touch(replica)\n                self.tally",
            "self.tally",
        ),
        (
            "time without any replica counts as time under load",
            "bool(self.lanes.jobs) and self.fleet.any_ready, now",
            "bool(self.lanes.jobs), now",
        ),
    ),
    *patches_in(
        "deployments/scheduling/placing.py",
        ("a leased id is never forgotten", "self._leased_ids.pop(lease.request.request_id, None)", "pass"),
        ("an attempt is not counted", "job.attempt += 1", "job.attempt = 1"),
        ("a lane that was passed over is not asked again once a hold is used", "passed_over.clear()", "pass"),
    ),
    *patches_in(
        "deployments/scheduling/lanes.py",
        (
            "the promoted: last in, first out",
            "job.sequence = self.next_sequence()",
            "job.sequence = -self.next_sequence()",
        ),
        ("the promoted keep their order of arrival", "            job.sequence = self.next_sequence()\n", ""),
        ("a refused job goes to the back", "if job.attempt or first:", "if first:"),
        (
            "after a reload nobody is promoted or given up",
            "self._push(job, self.lanes[job.home])\n            self._time(job)",
            "self._push(job, self.lanes[job.home])",
        ),
        ("a refused job is charged twice", "if job.attempt == 1:", "if job.attempt:"),
        ("lanes passed over keep no claim", "self._clock.passed_over(other.flow, self.largest_cost)", "pass"),
        (
            "the lane that had maximum is served next",
            "lane.flow.start < best.flow.start",
            "lane.flow.start > best.flow.start",
        ),
        ("work that waits forgets the promoted", "self.promoted.work + sum(", "sum("),
    ),
    *patches_in(
        "deployments/scheduling/suspects.py",
        (
            "a death is held against whoever ran beside a trial",
            " and (inquest.culprit is None or inquest.culprit == run.key):",
            ":",
        ),
        (
            "a replica that is back is held against those who ran there",
            "self._note(record._replace(deaths=record.deaths - 1))",
            "pass",
        ),
        ("a death that is reported in pieces counts several times", "if run.key not in inquest.noted and", "if"),
        ("a ban is never forgotten", "deaths=max(0, record.deaths - times)", "deaths=record.deaths"),
    ),
    *patches_in(
        "deployments/scheduling/suspects.py",
        ("suspects are tried all at once", "        if self._is_trying():\n            return\n", ""),
        ("the others do not wait for the trials", "record.answered and not tried and", "record.answered and"),
        (
            "of one suspect several run at once",
            "return (out is None or out.lane is None) and not self._placing.runs_of[key]",
            "return True",
        ),
    ),
    *patches_in(
        "deployments/scheduling/lane.py",
        ("past service is forgotten when a flow becomes active", "max(self.virtual, flow.finish)", "self.virtual"),
        ("idleness earns a share", "max(self.virtual, flow.finish)", "flow.finish"),
        (
            "the claim of a flow passed over has no bound",
            "flow.start = max(flow.start, self.virtual - largest / flow.weight)",
            "pass",
        ),
    ),
    *patches_in(
        "deployments/scheduling/learned_state.py",
        (
            "KV is booked without output",
            "(request.prompt_tokens + p90) * sequences",
            "request.prompt_tokens * sequences",
        ),
        (
            "KV is booked at the mean of the output",
            "(request.prompt_tokens + p90) * sequences",
            "(request.prompt_tokens + mean) * sequences",
        ),
    ),
    *patches_in(
        "deployments/scheduling/admission.py",
        (
            "the fair share of a full lane is not enforced",
            "claim.work + job.cost > claim.share * maximum",
            "claim.work + job.cost > maximum",
        ),
        ("the model's cap lets one too many in", "len(lanes.aside) < maximum", "len(lanes.aside) <= maximum"),
    ),
    *patches_in(
        "deployments/scheduling/forecasts.py",
        (
            "one that gives up leaves its wait_estimate open",
            "job.eta.gave_up(job.wait_estimate, now - job.request.arrived_s)",
            "pass",
        ),
    ),
    *patches_in(
        "deployments/scheduling/lane.py",
        (
            "the hopeless come first",
            "while viable:\n            entry",
            "while viable and not late:\n            entry",
        ),
        ("late work is never taken off", "lane.late_work = lane.late_work - job.cost if lane.late else 0.0", "pass"),
    ),
    *patches_in(
        "deployments/scheduling/replica.py",
        (
            "one sequence fewer than fits",
            "> capacity.sequences + capacity.ahead",
            ">= capacity.sequences + capacity.ahead",
        ),
        ("KV of an ended lease stays booked", "self.kv_tokens -= lease.kv_tokens", "pass"),
        (
            "a large prompt waits until all of it fits the prefill budget",
            "if self.prefill_tokens >= capacity.prefill_budget:",
            "if self.prefill_tokens + job.prefill_tokens > capacity.prefill_budget:",
        ),
    ),
    *patches_in(
        "deployments/scheduling/placing.py",
        ("a hold outlives what waited for it", "if not hold.lane.count or hold.lane.reserved is None:", "if False:"),
        (
            "what drained for a promoted job goes to whoever comes first",
            "lane.reserved = job\n",
            "lane.reserved = None\n",
        ),
        ("a replica is reserved for ever", "self._fleet.reserved -= 1", "pass"),
    ),
    *patches_in(
        "deployments/scheduling/policy.py",
        ("a minute's worth grows without end", "min(self._per_minute, self._level + (now", "(self._level + (now"),
        ("what was booked too much is taken again", "use.tokens.take(used - booked)", "use.tokens.take(booked - used)"),
    ),
    *patches_in(
        "deployments/scheduling/fleet.py",
        ("a replica that comes back is cordoned no more", "replica_id in self.cordoned)", "False)"),
    ),
    *patches_in(
        "deployments/scheduling/learned_state.py",
        ("the newest prefix is evicted", "known.popitem(last=False)", "known.popitem(last=True)"),
    ),
    *patches_in(
        "deployments/scheduling/admission.py",
        (
            "all rejected callers come back together",
            "self._booked_until_s = min(start + cost / rate, now + MAX_RETRY_S)",
            "pass",
        ),
    ),
    *patches_in(
        "deployments/scheduling/lanes.py",
        (
            "a time of an earlier wait counts in a later one",
            "entry[2].wait_id == entry[1] and entry[2].lane is not None",
            "entry[2].lane is not None",
        ),
    ),
    *patches_in(
        "deployments/scheduling/fleet.py",
        ("a forgiven replica keeps its old figures", "replica.tpot_s = None", "pass"),
    ),
    *patches_in(
        "deployments/scheduling/tally.py",
        (
            "a cancel in time counts as a wait_estimate missed",
            "(ending is Ending.CANCELLED and now > job.request.deadline_s)",
            "ending is Ending.CANCELLED",
        ),
    ),
]


PATCHES = SCHEDULING + OWNERSHIP
