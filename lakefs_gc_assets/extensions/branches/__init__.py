"""Stale branches: lists them by the policy, deletes approved ones, and recreates them."""
