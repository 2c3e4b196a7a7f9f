"""Pages for operators: status, metrics, single requests, the spec, orders. No request of a client passes here."""
