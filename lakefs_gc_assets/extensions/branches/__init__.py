"""Stale branches: lists them by the policy, deletes those that are approved, and makes them again."""
