"""Prints figures of runs for Prometheus."""
