"""What stands at the end of every report: what the simulator leaves out, and how far to trust its figures."""

from planning.simulator.report.facts import Basis

NOT_MODELLED = (
    "Replicas that fail, but for those that the command names; GPUs that are not to be had; starts that take longer than the command says.",
    "Prefix caching of what the trace does not tell: answers that come back in the next turn's prompt, and traces without prefix hashes.",
    "Speculative decoding, LoRA adapters, and the exchange between GPUs of one replica, but for what the costs say.",
    "The network, and what a request takes around the engine's steps: from the cost file, the same for all.",
    "Clients: nobody hangs up, and nobody comes back after a rejection.",
)

_BASIS = {
    "measured": "The costs of steps were measured on this engine.",
    "profile": "The costs of steps come from a profile of the model's layers, not from a run of the engine: times may be off by tens of per cent.",
    "roofline": (
        "NOT MEASURED. The costs of steps come from data sheets (a roofline). Compare policies and numbers of replicas with this report; promise no "
        "milliseconds and no dollars from it."
    ),
}


def basis_line(basis: Basis) -> str:
    """On what the figures rest."""
    error = "" if basis.error is None else f" Their step times are off by {basis.error:.1%} on average."
    return f"{_BASIS[basis.basis]}{error}"
