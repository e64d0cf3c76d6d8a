"""Writes a first configuration, and tests the permissions and features that runs need."""
