"""A lakeFS small enough for a laptop: the same API, the same files. It is no production server.

It is what newcomers try the collector on and what tests age, break and replay. One process, one lock, one user by
default; nothing here was made to keep data that matters.
"""
