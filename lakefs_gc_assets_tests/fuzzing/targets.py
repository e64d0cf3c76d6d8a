"""All fuzz targets, by name."""

from lakefs_gc_assets_tests.fuzzing import (
    addresses,
    commits_list,
    json_answers,
    object_names,
    parquet_files,
    s3_answers,
    stored_json,
    tables,
)
from lakefs_gc_assets_tests.fuzzing.running import Target

_MODULES = (tables, parquet_files, json_answers, commits_list, s3_answers, stored_json, addresses, object_names)
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
