"""Extensions: features beside collection, each a package with its logic, commands, definitions and pages.

The core imports none of them, and none imports another one. `cli/__init__.py` lists their commands and `definitions.py`
what they add to Dagster, a line each; a package that is deleted with its lines leaves a whole collector.
"""
