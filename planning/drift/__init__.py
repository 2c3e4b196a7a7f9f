"""Recorded traffic against what a worksheet expects: figures that have left it, and the alarm for that."""
