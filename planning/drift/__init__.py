"""Recorded traffic against what a worksheet expects: which figures have left it."""
