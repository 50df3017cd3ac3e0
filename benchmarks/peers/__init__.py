"""Comparisons with other packages: the same work on both sides, in turn."""
