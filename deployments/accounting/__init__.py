"""What the cell cost, and for whom: facts of replicas and requests, the bill that follows from them, and the files that
keep both."""
