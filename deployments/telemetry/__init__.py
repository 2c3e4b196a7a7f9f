"""What happened and how long it took: the ledger of each request, Prometheus metrics, the access log."""
