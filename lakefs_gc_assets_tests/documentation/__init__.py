"""The documentation: generated pages, references to the code, and the commands of its how-tos."""
