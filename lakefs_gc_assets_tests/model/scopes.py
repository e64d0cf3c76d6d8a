"""Scopes in which the model of a collection is checked, and the rules that are removed from it one by one.

A scope sets the size of the world (addresses, branches, runs) and the actions of clients. TLC visits every state of
every scope. A mutant removes one rule from the model, and TLC must find a state that violates its invariant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = bool | int | str | frozenset[int] | frozenset[str]


def some(*names: str) -> frozenset[str]:
    """Actions of clients, or removed rules."""
    return frozenset(names)


def up_to(last: int) -> frozenset[int]:
    """Numbers of addresses, branches or processes."""
    return frozenset(range(1, last + 1))


_LEAST: Mapping[str, Value] = {
    "Addresses": up_to(1),
    "Old": up_to(1),
    "Branches": up_to(1),
    "Begin": 2,
    "End": 2,
    "Window": 1,
    "Skew": 0,
    "Unnamed": True,
    "ByRules": False,
    "Retain": 1,
    "Own": 1,
    "Last": 1,
    "Commits": 3,
    "Twins": False,
    "Torn": False,
    "Longest": 0,
    "Assumed": 0,
    "Faulty": False,
    "Clients": some(),
    "Runs": 1,
    "Processes": up_to(1),
    "Locks": 1,
    "Expiry": 9,
    "Valid": 1,
    "Wait": 0,
    "WaitFrom": "uncommitted",
    "Reads": "heads",
    "Dry": False,
    "Quarantine": False,
    "Optimized": False,
    "Crashes": 0,
    "Off": some(),
}
"""One old object, one branch and one run; no client acts."""


@dataclass(frozen=True)
class Scope:
    """Constants that differ from the least scope, and further invariants that hold.

    Attributes:
        reaches: invariants that must be violated, since the events that they deny happen.
    """

    constants: Mapping[str, Value]
    invariants: tuple[str, ...] = ()
    reaches: tuple[str, ...] = ("NothingIsDeleted",)


@dataclass(frozen=True)
class Mutant:
    """A rule that is removed from a model.

    Attributes:
        scope: the scope that shows it.
        invariant: the violated invariant.
        bug: the seeded bug of the simulation that removes the same rule from the code; empty if there is none.
        test: a test of the code that fails without the rule, or that shows the loss.
        constants: constants that replace the rule, or make the scope smaller; if empty, the rule is in `Off`.
    """

    scope: str
    invariant: str
    bug: str
    test: str
    constants: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A model, in a file beside this one.

    Attributes:
        least: default constants of a scope.
        always: invariants that hold in every scope.
        mutants: mutants by removed rule.
        limits: losses that happen without any rule removed.
    """

    file: str
    least: Mapping[str, Value]
    always: tuple[str, ...]
    scopes: Mapping[str, Scope]
    mutants: Mapping[str, Mutant]
    limits: Mapping[str, Mutant]


_SCOPES: Mapping[str, Scope] = {
    "order": Scope(
        {"Addresses": up_to(2), "End": 3, "Clients": some("commit", "link", "remove", "upload")}, ("NoLiveMarked",)
    ),
    "ages": Scope(
        {"Old": some(), "Begin": 1, "End": 4, "Skew": 1, "Clients": some("act before", "issue", "link", "long upload")},
        ("NoLiveMarked",),
    ),
    "attempts": Scope(
        {"Old": some(), "End": 4, "Clients": some("commit", "issue", "link", "list again")}, ("NoLiveMarked",)
    ),
    "commits": Scope(
        {
            "End": 3,
            "Torn": True,
            "Unnamed": False,
            "Clients": some("commit", "refuse", "remove", "reset", "restage"),
            "Locks": 2,
        }
    ),
    "hidden": Scope(
        {
            "Addresses": up_to(2),
            "Old": up_to(2),
            "End": 3,
            "Torn": True,
            "Twins": True,
            "Clients": some("commit", "move", "remove", "reset", "restage", "revive"),
        }
    ),
    "rules": Scope(
        {"End": 3, "ByRules": True, "Valid": 0, "Torn": True, "Clients": some("commit", "move", "restage", "revive")},
        (),
    ),
    "set back": Scope(
        {"End": 3, "ByRules": True, "Valid": 0, "Torn": True, "Clients": some("commit", "move", "remove", "restage")},
        (),
    ),
    "tags": Scope(
        {
            "End": 3,
            "ByRules": True,
            "Valid": 0,
            "Torn": True,
            "Reads": "tags, heads",
            "Clients": some("clean start", "commit", "move", "remove", "restage", "untag"),
        },
        ("NothingStagedDeleted",),
    ),
    "merges": Scope(
        {
            "End": 3,
            "ByRules": True,
            "Valid": 0,
            "Torn": True,
            "Reads": "tags, heads",
            "Clients": some("commit", "merge", "remove", "untag"),
        }
    ),
    "longer rule": Scope(
        {
            "Branches": up_to(2),
            "End": 3,
            "ByRules": True,
            "Retain": 0,
            "Own": 9,
            "Commits": 4,
            "Valid": 0,
            "Torn": True,
            "Clients": some("clean start", "delete branch", "merge"),
        }
    ),
    "counts": Scope(
        {
            "End": 3,
            "ByRules": True,
            "Last": 2,
            "Commits": 4,
            "Valid": 0,
            "Torn": True,
            "Clients": some("clean start", "merge", "shorten"),
        }
    ),
    "windows": Scope(
        {
            "Begin": 1,
            "End": 4,
            "ByRules": True,
            "Commits": 3,
            "Clients": some("act before", "commit", "move", "remove"),
        }
    ),
    "branches": Scope(
        {"Branches": up_to(2), "End": 3, "Torn": True, "Clients": some("branch", "commit", "remove", "restage")}, ()
    ),
    "resume": Scope(
        {
            "Addresses": up_to(2),
            "Old": up_to(2),
            "ByRules": True,
            "Clients": some("move", "revive", "tag"),
            "Crashes": 1,
            "Locks": 2,
        }
    ),
    "blind": Scope({"End": 4, "Faulty": True, "Wait": 1, "Crashes": 1, "Locks": 2}, ()),
    "lock": Scope(
        {"Addresses": up_to(2), "Old": up_to(2), "End": 3, "Processes": up_to(2), "Expiry": 1, "Locks": 2}, ()
    ),
    "one run twice": Scope({"ByRules": True, "Processes": up_to(2), "Locks": 2, "Clients": some("move", "revive")}, ()),
    # One tick before the listing is made again, and one until commits that are under way at its mark have ended.
    "approval": Scope(
        {"End": 4, "Dry": True, "Torn": True, "Locks": 2, "Clients": some("commit", "list again", "remove")},
        ("ApprovalBindsToPlan",),
    ),
    "quarantine": Scope(
        {"Quarantine": True, "Runs": 2, "Crashes": 1, "Locks": 4, "Expiry": 1, "End": 3, "Clients": some("restore")},
        ("UndoBringsBack",),
        ("NothingIsDeleted", "NothingComesBack"),
    ),
    "late deletion": Scope(
        {"Quarantine": True, "Locks": 3, "Expiry": 1, "End": 3, "Clients": some("restore", "stand still")},
        ("NothingRestoredIsLost",),
        ("NothingIsDeleted", "NothingComesBack", "UndoBringsBack"),
    ),
    "slices": Scope(
        {"End": 4, "Optimized": True, "Runs": 3, "Locks": 3, "Clients": some("act before", "commit", "move", "remove")},
        ("SealedSliceNeverChanges",),
        ("NothingIsDeleted", "NoRunBuildsOnAnother"),
    ),
    "new slices": Scope(
        {"Addresses": up_to(2), "Begin": 1, "End": 3, "Optimized": True, "Clients": some("act before", "issue")},
        ("SealedSliceNeverChanges",),
    ),
    "dry base": Scope(
        {"Begin": 3, "End": 3, "Optimized": True, "Dry": True, "Runs": 2, "Locks": 3},
        (
            "SealedSliceNeverChanges",
            "ApprovalBindsToPlan",
        ),
    ),
    "slices by rules": Scope(
        {
            "Begin": 3,
            "End": 4,
            "ByRules": True,
            "Optimized": True,
            "Runs": 2,
            "Locks": 2,
            "Clients": some("commit", "move", "remove", "revive"),
        },
        ("SealedSliceNeverChanges",),
        ("NothingIsDeleted", "NoRunBuildsOnAnother"),
    ),
}


_MUTANTS: Mapping[str, Mutant] = {
    "list first": Mutant(
        "order",
        "NoLiveMarked",
        "listing after prepare",
        "test_nothing_is_marked_by_uncommitted_data_that_is_newer_than_the_commits",
    ),
    "uncommitted first": Mutant(
        "order",
        "NoLiveMarked",
        "committed read before uncommitted",
        "test_nothing_is_marked_by_uncommitted_data_that_is_newer_than_the_commits",
    ),
    "age by name": Mutant(
        "ages", "NoLiveMarked", "cutoff from LastModified alone", "test_leaves_the_whole_age_by_every_clock"
    ),
    "age by store": Mutant(
        "ages", "NoLiveMarked", "cutoff from the name alone", "test_leaves_the_whole_age_by_every_clock"
    ),
    "skew": Mutant("ages", "NoLiveMarked", "no skew", "test_counts_from_the_earliest_clock"),
    "attempts": Mutant(
        "attempts",
        "NoLiveMarked",
        "frames of two attempts mixed",
        "test_frames_of_different_attempts_are_never_combined",
    ),
    "longest commit": Mutant(
        "commits",
        "NoLiveDeleted",
        "recheck right after the listing",
        "test_it_waits_until_uncommitted_data_is_some_minutes_old",
    ),
    "longest commit of an approved run": Mutant(
        "approval",
        "NoLiveDeleted",
        "recheck right after the listing",
        "test_it_waits_until_uncommitted_data_is_some_minutes_old",
        {"Off": some("longest commit")},
    ),
    "hidden": Mutant(
        "hidden", "NoLiveDeleted", "hidden staged entries ignored", "test_a_candidate_that_a_path_means_is_kept"
    ),
    "recheck": Mutant(
        "rules", "NoLiveDeleted", "recheck older than the sweep", "test_what_became_live_since_the_mark_stays"
    ),
    "valid": Mutant(
        "rules",
        "NoLiveDeleted",
        "recheck believed for ever",
        "test_it_is_not_believed_for_long_and_not_asked_for_ever",
    ),
    "reasons at the mark": Mutant(
        "set back",
        "NoLiveDeleted",
        "reasons before the mark forgotten",
        "test_a_head_that_is_gone_before_refs_are_dumped_stays",
    ),
    "tags before": Mutant(
        "tags",
        "NothingStagedDeleted",
        "tags before the mark forgotten",
        "test_a_tag_that_is_gone_before_refs_are_dumped_keeps_its_commit",
    ),
    "tags before, merges": Mutant(
        "merges",
        "NoLiveDeleted",
        "tags before the mark forgotten",
        "test_a_tag_that_is_gone_before_refs_are_dumped_keeps_its_commit",
        {"Off": some("tags before")},
    ),
    "rules before": Mutant(
        "longer rule",
        "NoLiveDeleted",
        "rules before the mark forgotten",
        "test_rules_that_are_shortened_before_refs_are_dumped_keep_their_commits",
    ),
    "rules before, counts": Mutant(
        "counts",
        "NoLiveDeleted",
        "rules before the mark forgotten",
        "test_a_branch_with_counts_that_is_gone_before_refs_are_dumped_keeps_them",
        {"Off": some("rules before")},
    ),
    "reasons before the recheck": Mutant(
        "rules",
        "NoLiveDeleted",
        "reasons before the recheck forgotten",
        "test_a_recheck_knows_the_heads_there_were_before_it_asked_for_uncommitted_data",
    ),
    "tags": Mutant("merges", "NoLiveDeleted", "tags forgotten by retention rules", "test_every_case"),
    "dated by the next": Mutant(
        "windows",
        "NoLiveDeleted",
        "",
        "test_parents_stay_wherever_in_the_list_the_commit_is_that_keeps_them",
    ),
    "dangling": Mutant("windows", "NoLiveDeleted", "dangling commits ignored", "test_every_case"),
    "recheck on resume": Mutant(
        "resume",
        "NoLiveDeleted",
        "resume without recheck",
        "test_a_killed_sweep_goes_on_with_what_has_no_receipt",
    ),
    "receipt after": Mutant(
        "resume",
        "ReceiptsAreTrue",
        "receipts written before the delete",
        "test_receipts_are_there_before_the_next_batch_is_deleted",
    ),
    "wait": Mutant(
        "blind",
        "NoLiveDeleted",
        "recheck right after the listing",
        "test_without_that_wait_what_is_staged_is_lost",
    ),
    "wait from the listing": Mutant(
        "blind",
        "NoLiveDeleted",
        "recheck right after the listing",
        "test_so_does_it_where_uncommitted_data_was_prepared_long_after_the_listing",
        {"WaitFrom": "listing"},
    ),
    "verify": Mutant(
        "lock",
        "OnlyLockHolderDeletes",
        "lock not looked at before deleting",
        "test_nothing_is_deleted_when_somebody_else_has_taken_the_lock",
    ),
    "nonce": Mutant(
        "lock",
        "OnlyLockHolderDeletes",
        "two collectors at once",
        "test_nothing_is_deleted_when_somebody_else_has_taken_the_lock",
    ),
    "inputs": Mutant(
        "one run twice",
        "NoLiveDeleted",
        "recheck: inputs made again",
        "test_nothing_is_swept_whose_commits_were_read_again_while_it_waited",
    ),
    "approval": Mutant(
        "approval",
        "ApprovalBindsToPlan",
        "approval of any candidates",
        "test_an_approval_is_of_these_very_candidates",
    ),
    "copy first": Mutant(
        "quarantine",
        "UndoBringsBack",
        "moved without a copy",
        "test_an_object_that_is_not_there_counts_as_failed",
    ),
    "restored since": Mutant(
        "quarantine",
        "UndoBringsBack",
        "brought back since: not asked",
        "test_objects_that_were_brought_back_since",
    ),
    "copies stay": Mutant(
        "late deletion",
        "NothingRestoredIsLost",
        "a restoration removes copies",
        "test_what_a_deletion_that_is_done_late_takes_away_comes_back",
    ),
    "carried": Mutant(
        "slices",
        "NoLiveDeleted",
        "committed left out of the checkpoint",
        "test_no_history_breaks_a_rule",
    ),
    "pending without committed": Mutant(
        "slices",
        "NoLiveDeleted",
        "pending without subtracting committed",
        "test_no_history_breaks_a_rule",
    ),
    "recheck reads nothing for good": Mutant(
        "slices",
        "NoLiveDeleted",
        "ranges of the recheck marked as read",
        "test_no_history_breaks_a_rule",
        {"Faulty": True, "Wait": 1, "Runs": 2, "Locks": 2, "Clients": some("commit", "remove")},
    ),
    "sealed grows": Mutant(
        "slices",
        "SealedSliceNeverChanges",
        "sealed recomputed and shrinking",
        "test_no_history_breaks_a_rule",
    ),
    "slice span": Mutant(
        "new slices",
        "SealedSliceNeverChanges",
        "first slice from an unsorted frame",
        "test_no_history_breaks_a_rule",
    ),
    "no dry base": Mutant(
        "dry base", "SealedSliceNeverChanges", "a dry run as base run", "test_no_history_breaks_a_rule"
    ),
    "tracked": Mutant(
        "slices by rules",
        "SealedSliceNeverChanges",
        "only new ranges tracked",
        "test_no_history_breaks_a_rule",
    ),
}

_LIMITS: Mapping[str, Mutant] = {
    "revive late": Mutant(
        "rules", "NoLiveDeleted", "", "", {"Clients": some("move", "restage", "commit", "revive late")}
    ),
    "revive and remove": Mutant(
        "rules", "NoLiveDeleted", "", "", {"Clients": some("commit", "move", "remove", "restage", "revive")}
    ),
    "long commit": Mutant("commits", "NoLiveDeleted", "", "", {"End": 4, "Longest": 1}),
    "tags read last": Mutant("tags", "NothingStagedDeleted", "", "", {"Reads": "heads, tags"}),
    "hold": Mutant(
        "tags",
        "NoLiveDeleted",
        "",
        "",
        {"Clients": some("clean start", "commit", "hold", "move", "remove", "restage", "untag")},
    ),
    "stage old": Mutant("commits", "NoLiveDeleted", "", "", {"Clients": some("stage old")}),
}
"""Actions of clients that lose data although no rule is removed. docs/evidence/model.md says whose limit each is."""

COLLECTION = Model(
    "Collection.tla",
    _LEAST,
    ("NoLiveDeleted", "OnlyLockHolderDeletes", "ResumeDeletesOnlyPlanned", "ReceiptsAreTrue"),
    _SCOPES,
    _MUTANTS,
    _LIMITS,
)


_METADATA_LEAST: Mapping[str, Value] = {
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

_METADATA_SCOPES: Mapping[str, Scope] = {
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
_METADATA_MUTANTS: Mapping[str, Mutant] = {
    "age": Mutant("moves", "CommitsAreWhole", "", "test_age_is_a_week_or_the_minimum_age_if_that_is_longer"),
    "second survey": Mutant("moves", "WhatWasCommittedStays", "no second survey", _OF_METADATA),
    "copy": Mutant("moves", "NoneIsGoneForGood", "", "test_files_are_moved_with_receipts_and_all_put_back"),
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

_METADATA_LIMITS: Mapping[str, Mutant] = {
    "ends late": Mutant("moves", "CommitsAreWhole", "", "", {"Prompt": False}),
    "name late": Mutant("purges", "NoneIsGoneForGood", "", "", {"Clients": some("name late")}),
    "long commit": Mutant("purges", "NoneIsGoneForGood", "", "", {"Clients": some("write"), "Longest": 3, "End": 6}),
}
"""Demands and warnings of the pages about unneeded metadata: if ignored, a file is missing, or lost for good."""

METADATA = Model(
    "Metadata.tla",
    _METADATA_LEAST,
    ("NoneIsGoneForGood", "OnlyLockHolderDeletesMetadata"),
    _METADATA_SCOPES,
    _METADATA_MUTANTS,
    _METADATA_LIMITS,
)
