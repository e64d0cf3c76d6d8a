"""Checks that a repository is complete and readable, and collects unneeded metadata."""
