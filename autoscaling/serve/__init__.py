"""The autoscaler in Ray Serve's controller: a policy class that Serve asks, and a thread beside it that decides."""
