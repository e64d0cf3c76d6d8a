"""A lakeFS small enough for a laptop, with the same API and the same files. Not a production server.

Newcomers try the collector on it; tests age, break and replay its repositories. It has one process, one lock, and one
user by default. Do not use it for data that matters.
"""
