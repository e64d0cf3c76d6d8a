"""DataFrames out of the store and the server, and the functions that subtract them from each other."""
