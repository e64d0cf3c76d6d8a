"""Stored objects: the parts of a namespace that a run lists, and how it lists them."""
