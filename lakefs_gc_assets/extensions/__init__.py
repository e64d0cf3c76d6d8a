"""Extensions: features beside collection. Each is a package with its logic, commands, definitions and pages.

The core imports no extension, and no extension imports another one. `cli/__init__.py` lists their commands and
`definitions.py` their Dagster definitions, one line each. Deleting a package and its lines leaves a working collector.
"""
