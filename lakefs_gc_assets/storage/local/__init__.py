"""Namespaces that are folders."""
