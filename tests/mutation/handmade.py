"""Mutants made by hand: faults of meaning that no operator of a tool makes, as a wrong order, forgotten bookkeeping, a
bound that is off by one.

Each replaces one piece of text, which must stand in its file exactly once: where the code has moved, the patch is
written anew, never dropped.
"""

from tests.mutation.patch import Faults, patches_of

FAULTS: Faults = {
    "deployments/scheduling/scheduler.py": (
        ("holds survive a reload", "for lane in self.lanes.all:\n            self.holds.end(lane)", "pass"),
        ("a lost replica's prefixes are kept", "self.learned_state.prefixes.forget(replica_id)", "pass"),
        ("one that waited too long counts against its tenant for ever", "self.limits.end(gone)", "pass"),
        (
            "one that is cancelled while it waits counts against its tenant for ever",
            "self.lanes.take_out(job)\n        self.limits.end(job)",
            "self.lanes.take_out(job)",
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
    "deployments/scheduling/placing.py": (
        ("a leased id is never forgotten", "self._leased_ids.pop(lease.request.request_id, None)", "pass"),
        ("an attempt is not counted", "job.attempt += 1", "job.attempt = 1"),
        ("a lane that was passed over is not asked again once a hold is used", "passed_over.clear()", "pass"),
        ("a hold outlives what waited for it", "if not hold.lane.count or hold.lane.reserved is None:", "if False:"),
        (
            "what drained for a promoted job goes to whoever comes first",
            "lane.reserved = job\n",
            "lane.reserved = None\n",
        ),
        ("a replica is reserved for ever", "self._fleet.reserved -= 1", "pass"),
    ),
    "deployments/scheduling/lanes.py": (
        (
            "the promoted: last in, first out",
            "job.sequence = self.next_sequence()",
            "job.sequence = -self.next_sequence()",
        ),
        ("the promoted keep their order of arrival", "            job.sequence = self.next_sequence()\n", ""),
        ("a refused job goes to the back", "if job.attempt or first:", "if first:"),
        (
            "after a reload nobody is promoted or given up",
            "self._push(job, lane_now)\n            self._time(job)",
            "self._push(job, lane_now)",
        ),
        ("a refused job is charged twice", "if job.attempt == 1:", "if job.attempt:"),
        ("lanes passed over keep no claim", "self._clock.passed_over(other.flow, self.largest_cost)", "pass"),
        (
            "the lane that had most is served next",
            "lane.flow.start < best.flow.start",
            "lane.flow.start > best.flow.start",
        ),
        (
            "work that waits forgets the promoted",
            "sum(lane.work for lane in self.promoted_lanes) + sum(",
            "sum(",
        ),
        (
            "of two with one claim, the one that waits less is served",
            "(lane.flow.start, lane.home, _since(lane))",
            "(lane.flow.start, lane.home, -_since(lane))",
        ),
    ),
    "deployments/scheduling/request.py": (
        (
            "a time of an earlier wait counts in a later one",
            "entry[2].wait_id == entry[1] and entry[2].lane is not None",
            "entry[2].lane is not None",
        ),
    ),
    "deployments/scheduling/suspects.py": (
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
        ("suspects are tried all at once", "        if self._is_trying():\n            return\n", ""),
        ("the others do not wait for the trials", "record.answered and not tried and", "record.answered and"),
        (
            "of one suspect several run at once",
            "return (out is None or out.lane is None) and not self._placing.runs_of[key]",
            "return True",
        ),
    ),
    "deployments/scheduling/lane.py": (
        ("past service is forgotten when a flow becomes active", "max(self.virtual, flow.finish)", "self.virtual"),
        ("idleness earns a share", "max(self.virtual, flow.finish)", "flow.finish"),
        (
            "the claim of a flow passed over has no bound",
            "flow.start = max(flow.start, self.virtual - largest / flow.weight)",
            "pass",
        ),
        (
            "the hopeless come first",
            "while viable:\n            entry",
            "while viable and not late:\n            entry",
        ),
        ("late work is never taken off", "lane.late_work = lane.late_work - job.cost if lane.late else 0.0", "pass"),
    ),
    "deployments/scheduling/learned_state.py": (
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
        ("the newest prefix is evicted", "known.popitem(last=False)", "known.popitem(last=True)"),
    ),
    "deployments/scheduling/admission.py": (
        (
            "the fair share of a full lane is not enforced",
            "claim.work + job.cost > claim.share * maximum",
            "claim.work + job.cost > maximum",
        ),
        ("the model's cap lets one too many in", "len(lanes.aside) < maximum", "len(lanes.aside) <= maximum"),
        (
            "all rejected callers come back together",
            "self._booked_until_s = min(start + cost / rate, now + MAX_RETRY_S)",
            "pass",
        ),
    ),
    "deployments/scheduling/forecasts.py": (
        (
            "one that gives up leaves its wait estimate open",
            "job.eta.gave_up(job.wait_estimate, now - job.request.arrived_s)",
            "pass",
        ),
    ),
    "deployments/scheduling/replica.py": (
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
    "deployments/scheduling/policy.py": (
        ("a minute's worth grows without end", "min(self._per_minute, self._level + (now", "(self._level + (now"),
        ("what was booked too much is taken again", "use.take(0, used - booked)", "use.take(0, booked - used)"),
        (
            "a lane keeps a request that none of its groups fits",
            "(*range(home, len(self.lanes)), *reversed(range(home)))",
            "(home,)",
        ),
    ),
    "deployments/scheduling/fleet.py": (
        ("a replica that comes back is cordoned no more", "replica_id in self.cordoned)", "False)"),
        (
            "a request is placed where its context does not fit",
            "kind.group == name and job.context_tokens <= kind.context_tokens]",
            "kind.group == name]",
        ),
        ("groups are tried from the last to the first", "for name in job.groups:", "for name in reversed(job.groups):"),
        ("a forgiven replica keeps its old figures", "replica.tpot_s = None", "pass"),
    ),
    "deployments/scheduling/tally.py": (
        (
            "a cancel in time counts as a wait estimate missed",
            "(ending is Ending.CANCELLED and now > job.request.deadline_s)",
            "ending is Ending.CANCELLED",
        ),
    ),
    "deployments/ownership/owner_tracker.py": (
        (
            "an older word of the directory is followed",
            " or (known is not None and ownership.epoch < known.epoch):",
            ":",
        ),
        (
            "the late claim of an owner that is gone gives it a replica",
            "            if self.dispatcher.own is owner and self.dispatcher.replicas.is_ready(facts.replica_id):\n    "
            "            owner.replica_up",
            "            if True:\n                owner.replica_up",
        ),
        (
            "whoever was overtaken goes on as the owner",
            "self._let_go()\n        self._registrar.overtaken",
            "self._registrar.overtaken",
        ),
    ),
    "deployments/ownership/entries.py": (
        (
            "a lease that ended is adopted again",
            "entry.state in OVER and entry.attempt < attempt",
            "entry.state in OVER",
        ),
        ("what ended is remembered for ever", "if len(self._over) > REMEMBERED:", "if False:"),
        (
            "what waits again is forgotten with what ended before it",
            "self._over.pop(request_id, None)\n        self._keep(entry)",
            "self._keep(entry)",
        ),
    ),
    "deployments/ownership/channel.py": (
        (
            "a cancel crosses the admission",
            "self._send(Cancel(request_id))\n            case",
            "pass\n            case",
        ),
        ("a cancel crosses the placement", "self._send(Release(attempt_id, Ending.CANCELLED))", "pass"),
        ("a placement that is said twice ends its lease", "if attempt_id not in self._leased:", "if True:"),
        ("a closed outbox drops what is in it", "while not self._closed or self._lines:", "while not self._closed:"),
    ),
    "deployments/ownership/owned_hops.py": (
        (
            "a request that a peer has waits at home, too",
            "self._scheduler.withdraw(request_id, now)",
            "pass",
        ),
        (
            "a peer that was asked goes on with what home has placed",
            "entry.submitter.hop_withdrawn(request_id, hop.number)",
            "pass",
        ),
        ("a request that came back crosses a second hop", "replace(request, hops=1), True", "request, True"),
        (
            "a lost peer's request is put back though its client may have a byte",
            "if hop.state is HopState.OFFERED:\n            self._act",
            "if True:\n            self._act",
        ),
    ),
    "deployments/ownership/gateway_hops.py": (
        (
            "a byte reaches the client before the owner has confirmed the hop",
            "if hop is None or not hop.confirmed:\n            return False",
            "if hop is None:\n            return False",
        ),
        (
            "the next owner hears of numbers that mean nothing to it",
            "if owner is hop.owner:\n            owner.hop_reported",
            "if owner is not None:\n            owner.hop_reported",
        ),
        (
            "a hop that answers is closed",
            "if hop is None or hop.answering:\n            return",
            "if hop is None:\n            return",
        ),
    ),
    "deployments/ownership/peering.py": (
        (
            "a request that the cell may not serve enters its lane",
            "if self.core.may_serve(self.model, request):",
            "if True:",
        ),
        (
            "a guest is not asked about",
            "refusal = None if admitted else self._refusal(request, hop, now)",
            "refusal = None",
        ),
    ),
    "deployments/ownership/session.py": (
        ("a channel that broke leaves what waits behind", "self._owner.left(self)", "pass"),
    ),
    "deployments/ownership/pending_request.py": (
        ("an attempt is not raised after a refusal", "self.request = replace(self.request, attempts=attempt)", "pass"),
    ),
    "deployments/ownership/dispatcher.py": (
        (
            "a recorded hop takes the place of the guest that is here",
            "if hop is not None and request.request_id in self._pending_requests:",
            "if False:",
        ),
        (
            "what was placed as it was given up keeps its lease",
            "self._owner.release(placement.lease.attempt_id, Ending.CANCELLED)",
            "pass",
        ),
        (
            "what was admitted is asked for as if it were new",
            "owner.submit(self, pending.request, pending.admitted, pending.hop)",
            "owner.submit(self, pending.request, False, pending.hop)",
        ),
        (
            "the owner hears of a first token with every byte",
            " and not pending.answered:\n            pending.answered = True",
            ":\n            pending.answered = True",
        ),
        ("a whole answer is cut where its replica is lost after it", " and not pending.complete:", ":"),
    ),
    "deployments/ownership/lane_owner.py": (
        (
            "an owner forgets the attempt that was refused",
            "replace(lease.request, attempts=lease.attempt)",
            "replace(lease.request, attempts=lease.attempt - 1)",
        ),
        (
            "what a replica does not run stays on the books",
            "self._end(gone, Ending.FAILED, EntryState.CLOSED)",
            "pass",
        ),
        (
            "what waited for a gateway that is gone goes on waiting",
            "if entry.state in QUEUED:\n                self._withdraw(entry)",
            "if entry.state in QUEUED:\n                pass",
        ),
    ),
    "deployments/cell/owners.py": (
        (
            "a second claim to an epoch deposes the rightful owner",
            "(owner is None or epoch > owner.epoch)",
            "(owner is None or epoch >= owner.epoch)",
        ),
        ("a lower epoch that is seen makes the next one lower", "max(epoch, self.epochs.get(model, 0))", "epoch"),
        ("an epoch is issued twice", "self.epochs.get(model, 0) + 1, chosen", "self.epochs.get(model, 1), chosen"),
        (
            "models go to the gateway that has most",
            "(load[gateway_id], gateway_id)",
            "(-load[gateway_id], gateway_id)",
        ),
    ),
    "deployments/ownership/roles.py": (("an overtaken channel is opened after all", "if number < last:", "if False:"),),
    "deployments/ownership/takeover.py": (
        ("a death is counted again at every word of it", "dead - self._dead, dead", "dead, dead"),
    ),
}


PATCHES = patches_of(FAULTS)
