"""All fuzz targets, by name."""

from lakefs_gc_assets_tests.fuzzing import json_answers, object_names, s3_answers, stored_files, tables
from lakefs_gc_assets_tests.fuzzing.running import Target

_MODULES = (tables, stored_files, json_answers, s3_answers, object_names)
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
