"""Checkpoints of runs, and the choice of the run that an optimized run builds on."""
