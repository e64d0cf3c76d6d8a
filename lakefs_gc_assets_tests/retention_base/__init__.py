"""A design that is built but for its last part: runs by retention rules that read only what is new since another run.

They also read what expired since. It is played on a model in which a full run marks beside it. The same histories break
each part of the design that is left out or done in an obvious other way. docs/retention.md describes it.
"""
