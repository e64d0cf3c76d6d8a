"""Checkpoints of runs, and the choice of the base run for an optimized run."""
