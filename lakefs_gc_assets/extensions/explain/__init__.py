"""Explains why a run keeps or deletes an object."""
