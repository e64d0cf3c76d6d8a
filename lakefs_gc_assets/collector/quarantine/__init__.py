"""Sweeping into quarantine, restoring from it, purging it."""
