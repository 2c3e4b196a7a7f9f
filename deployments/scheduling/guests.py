"""Where guests wait: the requests that peer cells hand over to this one.

A cell serves its peers with what its own clients leave free. What a guest costs them is mostly its prefill: whoever
arrives meanwhile waits for that step, or shares it. So guests wait aside of the lanes, in the order in which they came,
and one enters its lane when nothing of the cell's own waits for that replica, and a replica that has room for it
prefills nothing. What arrives then finds all other replicas as they would be without guests.

A cell that is full might never come to that. So after its lane's `max_wait_s` here, or while no replica takes work, a
guest waits in its lane like everybody else; from there on the bound of lanes.py holds.
"""

from collections.abc import Iterator
from itertools import islice

from deployments.scheduling.fleet import Fleet
from deployments.scheduling.lanes import Lanes, WaitingGuest
from deployments.scheduling.reasons import AdmissionKind
from deployments.scheduling.request import Job

_LOOKED_AT = 8
"""So many guests are looked at for a replica that prefills nothing. Of those that have room for none, there are few."""


class GuestRoom:
    """The scheduler gives it its own parts. The guests are in `lanes.guests`, by request id."""

    def __init__(self, lanes: Lanes, fleet: Fleet) -> None:
        self._lanes = lanes
        self._fleet = fleet

    def take(self, job: Job, now: float) -> AdmissionKind:
        """Takes in a guest. `ADMIT`: as things are, it begins at the next step."""
        request, lanes = job.request, self._lanes
        begins = not lanes.guests and self._may_begin(job)
        until_s = min(request.expires_s, now + lanes.policy.lanes[job.home].max_wait_s)
        lanes.guests[request.request_id] = WaitingGuest(job, until_s)
        return AdmissionKind.ADMIT if begins else AdmissionKind.QUEUE

    def lets_in(self, now: float) -> bool:
        """Lets one guest into its lane, if one may begin or has waited for long enough. To be called again after what
        can be placed is placed: the next one finds less room."""
        guests = self._lanes.guests
        found = next((one.job for one in guests.values() if one.until_s <= now), None)
        if found is None and any(replica.open and not replica.prefill_tokens for replica in self._fleet.by_id.values()):
            jobs = (one.job for one in islice(guests.values(), _LOOKED_AT))
            found = next((job for job in jobs if self._may_begin(job)), None)
        if found is not None:
            self._let_in(found)
        return found is not None

    def disperse(self) -> None:
        """Lets all guests into their lanes if no replica takes work: there it is decided whether they wait in vain."""
        if self._lanes.guests and not self._fleet.any_ready:
            for one in list(self._lanes.guests.values()):
                self._let_in(one.job)

    def expire(self, now: float) -> Iterator[Job]:
        """Takes out the guests whose wait is given up, one at a time."""
        for request_id, one in list(self._lanes.guests.items()):
            if one.job.request.expires_s <= now:
                del self._lanes.guests[request_id]
                yield one.job

    def _let_in(self, job: Job) -> None:
        del self._lanes.guests[job.request.request_id]
        self._lanes.enter_again(job)

    def _may_begin(self, job: Job) -> bool:
        fitting = self._fleet.fitting(job)
        if not isinstance(fitting, list):
            return False
        groups = {replica.capacity.group for replica in fitting if not replica.prefill_tokens}
        return any(not self._lanes.wait_for(group) for group in groups)
