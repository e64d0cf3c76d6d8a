"""Engines for tables of addresses: the port, the local engine, and the functions that engines share."""
