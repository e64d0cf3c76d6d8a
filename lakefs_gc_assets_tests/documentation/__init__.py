"""The documentation: what is generated, what it names, and the commands of its how-tos."""
