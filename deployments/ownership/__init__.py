"""Who decides on a model: the gateway that owns it. How ownership moves, how gateways ask the owner for leases, and
what each keeps of its own."""
