"""A real S3 server for tests, and proxies that delay, corrupt, cut and count what passes."""
