"""Mutants of ownership made by hand (see `handmade.py`)."""

from tests.mutation.patch import patches_in

OWNERSHIP = [
    *patches_in(
        "deployments/ownership/owner_tracker.py",
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
    *patches_in(
        "deployments/ownership/entries.py",
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
    *patches_in(
        "deployments/ownership/channel.py",
        (
            "a cancel crosses the admission",
            "self._send(Cancel(request_id))\n            case",
            "pass\n            case",
        ),
        ("a cancel crosses the placement", "self._send(Release(attempt_id, Ending.CANCELLED))", "pass"),
        ("a placement that is said twice ends its lease", "if attempt_id not in self._leased:", "if True:"),
    ),
    *patches_in(
        "deployments/ownership/pending_request.py",
        ("an attempt is not raised after a refusal", "self.request = replace(self.request, attempts=attempt)", "pass"),
    ),
    *patches_in(
        "deployments/ownership/dispatcher.py",
        (
            "what was placed as it was given up keeps its lease",
            "self._owner.release(placement.lease.attempt_id, Ending.CANCELLED)",
            "pass",
        ),
        (
            "what was admitted is asked for as if it were new",
            "owner.submit(self, pending.request, pending.admitted)",
            "owner.submit(self, pending.request, False)",
        ),
        (
            "the owner hears of a first token with every byte",
            " and not pending.answered:\n            pending.answered = True",
            ":\n            pending.answered = True",
        ),
        ("a whole answer is cut where its replica is lost after it", " and not pending.complete:", ":"),
    ),
    *patches_in(
        "deployments/ownership/lane_owner.py",
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
            "if entry.state is EntryState.WAITING:\n                self._withdraw(entry)",
            "if entry.state is EntryState.WAITING:\n                pass",
        ),
    ),
    *patches_in(
        "deployments/cell/owners.py",
        (
            "a second claim to an epoch deposes the rightful owner",
            "(owner is None or epoch > owner.epoch)",
            "(owner is None or epoch >= owner.epoch)",
        ),
        ("a lower epoch that is seen makes the next one lower", "max(epoch, self.epochs.get(model, 0))", "epoch"),
        ("an epoch is issued twice", "self.epochs.get(model, 0) + 1, chosen", "self.epochs.get(model, 1), chosen"),
        (
            "models go to the gateway that has maximum",
            "(load[gateway_id], gateway_id)",
            "(-load[gateway_id], gateway_id)",
        ),
    ),
    *patches_in(
        "deployments/ownership/roles.py", ("an overtaken channel is opened after all", "if number < last:", "if False:")
    ),
    *patches_in(
        "deployments/ownership/channel.py",
        ("a channel that broke leaves what waits behind", "self._owner.left(self)", "pass"),
    ),
    *patches_in(
        "deployments/ownership/channel.py",
        ("a closed outbox drops what is in it", "while not self._closed or self._lines:", "while not self._closed:"),
    ),
    *patches_in(
        "deployments/ownership/handover.py",
        ("a death is counted again at every word of it", "dead - self._dead, dead", "dead, dead"),
    ),
]
