"""Checks that a repository is whole."""
