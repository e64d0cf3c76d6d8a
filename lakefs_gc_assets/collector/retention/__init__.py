"""Commits that retention keeps: rules, policies, active commits, and the server's own list."""
