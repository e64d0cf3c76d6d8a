"""Deleting: passes with a recheck each, batches with a receipt for every object."""
