"""Scopes in which the model of moving metadata is checked, and the rules that are removed from it one by one."""

from collections.abc import Mapping

from lakefs_gc_assets_tests.model.scopes import Model, Mutant, Scope, Value, some

_LEAST: Mapping[str, Value] = {
    "Acts": some("move"),
    "Starts": 1,
    "Begin": 2,
    "End": 4,
    "Age": 2,
    "Wait": 1,
    "Keep": 2,
    "Longest": 1,
    "Prompt": False,
    "Clients": some(),
    "Crashes": 0,
    "Stalls": False,
    "Broken": False,
    "Failing": some(),
    "Off": some(),
}

_SCOPES: Mapping[str, Scope] = {
    "moves": Scope(
        {"Longest": 2, "Prompt": True, "Clients": some("name", "write")},
        ("CommitsAreWhole", "WhatWasCommittedStays"),
        ("NothingIsMoved",),
    ),
    "failures": Scope(
        {"Failing": some("survey"), "Prompt": True, "Clients": some("name", "write")},
        ("CommitsAreWhole",),
        ("NothingIsMoved",),
    ),
    "late deletions": Scope(
        {
            "Acts": some("move", "restore"),
            "Starts": 2,
            "Broken": True,
            "Stalls": True,
            "Clients": some("name", "write"),
        },
        (),
        ("NothingIsMoved", "NothingComesBack"),
    ),
    "purges": Scope(
        {
            "Acts": some("move", "purge"),
            "Starts": 2,
            "End": 5,
            "Failing": some("restore"),
            "Clients": some("name moved", "write"),
        },
        (),
        ("NothingIsPurged",),
    ),
    "purges after crashes": Scope(
        {"Acts": some("move", "purge"), "Starts": 2, "End": 5, "Crashes": 1, "Clients": some("name moved")},
        ("WhatWasCommittedStays",),
        ("NothingIsPurged",),
    ),
    "lost locks": Scope(
        {"Acts": some("move", "purge"), "Starts": 3, "End": 5, "Stalls": True}, (), ("NothingIsPurged",)
    ),
}

_OF_METADATA = "test_each_rule_is_missed_when_it_is_taken_out"
_MUTANTS: Mapping[str, Mutant] = {
    "age": Mutant("moves", "CommitsAreWhole", "", "test_age_is_a_week_or_the_minimum_age_if_that_is_longer"),
    "second survey": Mutant("moves", "WhatWasCommittedStays", "no second survey", _OF_METADATA),
    "copy": Mutant("moves", "NoneIsGoneForGood", "", "test_histories_notice_what_is_missing"),
    "look": Mutant("moves", "CommitsAreWhole", "no look before the deletion", _OF_METADATA),
    "wait": Mutant("moves", "CommitsAreWhole", "no waits", _OF_METADATA),
    "third survey": Mutant("moves", "CommitsAreWhole", "no third survey", _OF_METADATA),
    "ranges": Mutant("moves", "WhatWasCommittedStays", "ranges of commits are not put back", _OF_METADATA),
    "young metaranges": Mutant("moves", "CommitsAreWhole", "ranges of young metaranges are not put back", _OF_METADATA),
    "after a failure": Mutant("failures", "CommitsAreWhole", "nothing put back after a failure", _OF_METADATA),
    "keep copies": Mutant("late deletions", "NoneIsGoneForGood", "", "test_a_deletion_that_is_done_late_leaves_a_copy"),
    "verify": Mutant("lost locks", "OnlyLockHolderDeletesMetadata", "a move does not look at the lock", _OF_METADATA),
    "verify purge": Mutant(
        "lost locks", "OnlyLockHolderDeletesMetadata", "a purge does not look at the lock", _OF_METADATA
    ),
    "purge puts back": Mutant(
        "purges after crashes", "WhatWasCommittedStays", "a purge puts nothing back", _OF_METADATA
    ),
    "purge looks": Mutant("purges", "NoneIsGoneForGood", "a purge does not look at what is named", _OF_METADATA),
    "purge age": Mutant("purges", "NoneIsGoneForGood", "a purge does not look at the age", _OF_METADATA),
}
"""Bugs of `extensions/check/test_unneeded_metadata.py`; a rule without a bug has a test that fails without the rule."""

_LIMITS: Mapping[str, Mutant] = {
    "ends late": Mutant("moves", "CommitsAreWhole", "", "", {"Prompt": False}),
    "name late": Mutant("purges", "NoneIsGoneForGood", "", "", {"Clients": some("name late")}),
    "long commit": Mutant("purges", "NoneIsGoneForGood", "", "", {"Clients": some("write"), "Longest": 3, "End": 6}),
}
"""Demands and warnings of the pages about unneeded metadata: if ignored, a file is missing, or lost for good."""

METADATA = Model(
    "Metadata.tla", _LEAST, ("NoneIsGoneForGood", "OnlyLockHolderDeletesMetadata"), _SCOPES, _MUTANTS, _LIMITS
)
