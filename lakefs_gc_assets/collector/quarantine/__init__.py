"""Restoring from quarantine, and purging it."""
