import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.retention.active_commits import EXPIRED_BEFORE, EXPIRED_BEFORE_KEY
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, routes
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository, with_history

Invoke = Callable[..., Result]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RetainedRepository]:
    with EmbeddedServer(tmp_path / "server", routes=ROUTES) as server:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv(SECRET_VARIABLE, server.secret_access_key)
        monkeypatch.delenv("LAKEFS_GC_CONFIG", raising=False)
        repository = with_history(server, tmp_path)
        repository.rules(7, main=28)
        repository.configuration()
        yield repository


def invoke(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, ["policy", *arguments], input=answer)


def table(result: Result) -> dict[str, list[str]]:
    """Columns by branch: retention, commits, age of the head, rule."""
    lines = result.stdout.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("branch "))
    end = next(at for at, line in enumerate(lines) if line.startswith("of "))
    return {
        line.split("  ")[0].strip(): [cell.strip() for cell in line.split("  ")[1:] if cell.strip()]
        for line in lines[start + 1 : end]
    }


class TestShow:
    def test_the_rule_of_each_branch_and_what_it_keeps(self, made: RetainedRepository) -> None:
        result = invoke("show")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines()[0] == "repo at local://repo/"
        assert table(result) == {
            "main": ["28d", "3", "2.0 days ago", "the server's rule of main"],
            "dev": ["7d", "1", "30.0 days ago", "the server's default"],
            "(dangling)": ["7d", "0", "the server's default"],
        }
        # The dangling commit's own walk passes no young commit. Five stay: fourth, third, second, the
        # commit of dev and, by its tag, first. The commit of gone and the repository's initial commit are expired.
        assert "of 7 commits 5 stay, 2 are expired" in result.stdout
        assert "tags keep 1 commit" in result.stdout

    def test_without_rules(self, made: RetainedRepository) -> None:
        made.call("DELETE", "/settings/gc_rules")
        result = invoke("show")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines()[1:] == [
            "WARNING: the repository has no retention rules, so every commit stays",
            "of 7 commits 7 stay, 0 are expired",
        ]

    def test_rules_that_cannot_be_meant(self, made: RetainedRepository) -> None:
        for days in (-1, 2**31 - 1):
            made.rules(days)
            result = invoke("show")
            assert (result.exit_code, result.stdout) == (Status.CONFIGURATION, "")
            assert "retention rules: default_retention_days is" in result.stderr.splitlines()[-1]

    def test_zero_is_said_first(self, made: RetainedRepository) -> None:
        made.rules(0, main=0)
        lines = invoke("show").stdout.splitlines()
        assert lines[1].startswith("WARNING: RETENTION OF ZERO: 2 of 2 branches keep only their head")
        assert lines[2].startswith("WARNING: RETENTION OF ZERO: no dangling commit")

    def test_the_policy_of_the_configuration_counts(self, made: RetainedRepository) -> None:
        Path("policy.yaml").write_text("branches: {d*: 10w}\nstale_after: 25d\nkeep_tags: false\n")
        made.configuration(retention_policy="policy.yaml")
        result = invoke("show")
        assert result.exit_code == 0, result.stderr
        assert table(result)["dev"] == ["70d", "4", "30.0 days ago", "the policy's rule d*, line 1"]
        assert "tags keep 0 commits, the policy pins 0 (keep_tags: false)" in result.stdout
        assert "branch dev is stale: its last commit was made at" in result.stdout

    def test_rules_that_count(self, made: RetainedRepository) -> None:
        Path("policy.yaml").write_text(
            "branches:\n  dev:\n    retention: 1d\n    keep_last: 3\n    keep: {daily: 2}\n    follow: all-parents\n"
            "keep_tags: ['v*', release]\n"
        )
        made.configuration(retention_policy="policy.yaml")
        result = invoke("show")
        rule = "the server's default, keep_last 3, daily 2, all parents 1d"
        assert table(result)["dev"] == ["7d", "3", "30.0 days ago", rule]
        assert "(keep_tags: v*, release)" in result.stdout
        of_dev = {each["branch"]: each for each in json.loads(invoke("show", "--json").stdout)["rules"]}["dev"]
        assert (of_dev["keeps"], of_dev["merged_seconds"]) == ({"keep_last": 3, "daily": 2}, 86_400)
        result = invoke("set", "dev", "2d", "--yes")
        assert result.exit_code == 0, result.stderr
        assert "keep_last: 3" in Path("policy.yaml").read_text()
        result = invoke("unset", "dev", "--yes")
        assert "SHORTER: dev to 7d" in result.stdout
        assert Path("policy.yaml").read_text() == "branches: {}\nkeep_tags: ['v*', release]\n"

    def test_a_server_that_refuses_dumps(self, made: RetainedRepository, monkeypatch: pytest.MonkeyPatch) -> None:
        user = routes.add_user(made.server, "no dumps", "fs:ListCommits")
        file = made.configuration()
        file.write_text(file.read_text().replace(made.server.access_key_id, user.access_key_id))
        monkeypatch.setenv(SECRET_VARIABLE, user.secret_access_key)
        result = invoke("show")
        assert result.exit_code == 1
        assert "/dump" in result.stderr


class TestCheck:
    def test_a_policy_before_it_is_used(self, made: RetainedRepository) -> None:
        Path("new.yaml").write_text("default: 2w\nreplace: true\n")
        result = invoke("check", "new.yaml")
        assert result.exit_code == 0, result.stderr
        assert table(result) == {
            "main": ["14d", "2", "2.0 days ago", "the policy's default"],
            "dev": ["14d", "1", "30.0 days ago", "the policy's default"],
            "(dangling)": ["14d", "0", "the policy's default"],
        }

    def test_faults_need_no_server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("new.yaml").write_text("default: 2w\nbranches:\n  main: 7\n")
        result = invoke("check", "new.yaml")
        assert (result.exit_code, result.stdout) == (Status.CONFIGURATION, "")
        assert result.stderr == (
            "lakefs-gc: new.yaml, line 3: 7 has no unit: write 7d for days, 7h for hours or 7w for weeks\n"
        )

    def test_file_alone_without_configuration(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("LAKEFS_GC_CONFIG", raising=False)
        Path("new.yaml").write_text("default: 2w\nbranches: {main: {retention: 1d, keep_last: 2}}\nkeep_tags: ['v*']\n")
        result = invoke("check", "new.yaml")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines() == [
            "new.yaml: default 14d; branches: 1 rule; tags that keep commits: v*; 0 pinned commits; "
            "stale branches: 0 rules",
            "WARNING: only the file was checked, not its names and patterns against branches, tags and commits: "
            "there is no configuration",
        ]
        (rule,) = json.loads(invoke("check", "new.yaml", "--json").stdout)["rules"]
        assert (rule["branch"], rule["retention_seconds"], rule["keeps"]) == ("main", 86_400, {"keep_last": 2})
        assert invoke("check").exit_code == Status.CONFIGURATION

    def test_file_alone_without_server(self, made: RetainedRepository) -> None:
        file = made.configuration()
        content = yaml.safe_load(file.read_text())
        content["lakefs"] |= {"endpoint": "http://127.0.0.1:9", "retries": 0}
        file.write_text(yaml.safe_dump(content))
        Path("new.yaml").write_text("default: 2w\nkeep_tags: false\n")
        result = invoke("check", "new.yaml")
        assert result.exit_code == 0, result.stderr
        shown, warning = result.stdout.splitlines()
        assert shown.startswith("new.yaml: default 14d; branches: 0 rules; tags that keep commits: none; 0 pinned")
        assert "only the file was checked" in warning
        assert "Connection refused" in warning
        assert invoke("check").exit_code not in (0, Status.CONFIGURATION)

    def test_branches_that_do_not_exist(self, made: RetainedRepository) -> None:
        Path("new.yaml").write_text("branches:\n  mian: 2w\n")
        result = invoke("check", "new.yaml")
        assert result.exit_code == Status.REFUSED
        assert "WARNING: the policy's rule of mian, line 2: there is no such branch" in result.stdout
        assert "a sweep would be refused: guard rules of unknown branches" in result.stdout
        made.configuration(allow_rules_of_unknown_branches=True)
        assert invoke("check", "new.yaml").exit_code == 0


class TestSet:
    def rules(self) -> Path:
        content = {"default_retention_days": 1, "branches": [{"branch_id": "dev", "retention_days": 45}]}
        Path("rules.json").write_text(json.dumps(content))
        return Path("rules.json")

    def stated(self, made: RetainedRepository) -> object:
        return clients.call(made.server, "GET", "/repositories/repo/settings/gc_rules")[1]

    def test_rules_are_shown_and_then_set(self, made: RetainedRepository) -> None:
        result = invoke("set", str(self.rules()), "--yes")
        assert result.exit_code == 0, result.stderr
        assert table(result)["dev"] == ["45d", "3", "30.0 days ago", "the server's rule of dev"]
        assert self.stated(made) == json.loads(self.rules().read_text())
        assert table(invoke("show")) == table(result)

    def test_not_without_consent(self, made: RetainedRepository) -> None:
        before = self.stated(made)
        for answer in ("n\n", ""):
            result = invoke("set", str(self.rules()), answer=answer)
            assert result.exit_code == 1
            assert table(result)["main"][0] == "1d"
            assert self.stated(made) == before
        assert invoke("set", str(self.rules()), answer="y\n").exit_code == 0
        assert self.stated(made) != before

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("default: 3d", "rules.json: Invalid JSON: expected value at line 1 column 1. The server's rules are JSON"),
            ('{\n"default_retention_days": 3,\n}', "rules.json: Invalid JSON: trailing comma at line 3"),
            ("[]", "an object with default_retention_days and branches"),
            ('{"default_retention_days": 3, "branch": []}', "branch: Extra inputs are not permitted"),
            ('{"default_retention_days": 1.5}', "default_retention_days: Input should be a valid integer"),
            ('{"default_retention_days": -3}', "default_retention_days is negative"),
            ('{"default_retention_days": 0}', "lakeFS treats zero days for everything as no rules"),
            ('{"default_retention_days": 1000000}', "more than the maximum of 36,500"),
            (
                '{"default_retention_days": 3, "branches": [{"branch_id": "main", "retention_days": -1}]}',
                "the rule of branch main is negative",
            ),
            (
                '{"default_retention_days": 3, "branches": [{"branch_id": "main", "retention_days": 1}, '
                '{"branch_id": "main", "retention_days": 2}]}',
                "rules.json: there are two rules for branch main",
            ),
            (
                '{"default_retention_days": 3, "branches": [{"branch_id": "mian", "retention_days": 1}]}',
                "rules.json: the server's rule of mian: there is no such branch",
            ),
        ],
    )
    def test_rules_that_cannot_be_meant_are_not_set(self, made: RetainedRepository, text: str, words: str) -> None:
        before = self.stated(made)
        Path("rules.json").write_text(text)
        result = invoke("set", "rules.json", "--yes")
        assert (result.exit_code, result.stdout) == (Status.CONFIGURATION, "")
        assert words in result.stderr.splitlines()[-1]
        assert self.stated(made) == before

    def test_bad_rules_can_be_put_right(self, made: RetainedRepository) -> None:
        made.rules(-1)
        assert invoke("set", str(self.rules()), "--yes").exit_code == 0
        assert invoke("show").exit_code == 0


class TestOneRule:
    def stated(self, made: RetainedRepository) -> object:
        return made.call("GET", "/settings/gc_rules")

    def test_of_the_server(self, made: RetainedRepository) -> None:
        result = invoke("set", "main", "20d", answer="y\n")
        assert result.exit_code == 0, result.stderr
        assert table(result)["main"][0] == "20d"
        lines = result.stdout.splitlines()
        changes = lines.index("--- the server's rules")
        assert lines[changes + 1 : changes + 7] == [
            "+++ the server's rules, changed",
            "@@ -1,2 +1,2 @@",
            " default: 7d",
            "-main: 28d",
            "+main: 20d",
            "SHORTER: main by 8d to 20d",
        ]
        # The commit of 40 days: it was replaced 20 days ago.
        assert lines[changes + 7] == "commits that would now expire: 1"
        assert lines[-1].endswith("the rules are set")
        assert self.stated(made) == {"default_retention_days": 7, "branches": [_rule("main", 20)]}
        for arguments in (("set-default", "30d"), ("set", "dev", "2w"), ("unset", "main")):
            result = invoke(*arguments, "--yes", "--quiet")
            assert result.exit_code == 0, result.stderr
            assert "SHORTER" not in result.stdout or arguments[0] == "set"
        assert self.stated(made) == {"default_retention_days": 30, "branches": [_rule("dev", 14)]}

    @pytest.mark.parametrize("policy", [None, "default: 1d\n"])
    def test_of_branch_that_does_not_exist_is_set_with_a_warning(
        self, made: RetainedRepository, policy: str | None
    ) -> None:
        if policy is not None:
            Path("policy.yaml").write_text(policy)
            made.configuration(retention_policy="policy.yaml")
        result = invoke("set", "other-branch", "2d", "--yes")
        assert result.exit_code == 0, result.stderr
        rule = "the server's rule of other-branch" if policy is None else "the policy's rule of other-branch, line 3"
        assert f"WARNING: {rule}: there is no such branch" in result.stdout.splitlines()
        assert "a sweep would be refused: guard rules of unknown branches" in result.stdout
        if policy is None:
            branches = [_rule("main", 28), _rule("other-branch", 2)]
            assert self.stated(made) == {"default_retention_days": 7, "branches": branches}
        else:
            assert Path("policy.yaml").read_text() == "default: 1d\nbranches:\n  other-branch: 2d\n"

    def test_of_pattern_that_fits_no_branch_is_set_with_a_warning(self, made: RetainedRepository) -> None:
        Path("policy.yaml").write_text("default: 1d\n")
        made.configuration(retention_policy="policy.yaml")
        result = invoke("set", "user-*", "2d", "--yes")
        assert "WARNING: the policy's rule of user-*, line 3, matches no branch" in result.stdout.splitlines()
        assert "refused" not in result.stdout

    def test_longer_rule_says_how_many_commits_lost_objects_before(self, made: RetainedRepository) -> None:
        commit = made.call("GET", f"/commits/{made.commits['of gone']}")
        ids = pa.table([[commit["meta_range_id"]]], schema=EXPIRED_BEFORE)
        tables.put(LocalStore(made.server.objects_folder / "repo"), EXPIRED_BEFORE_KEY, ids)
        assert "had expired" not in invoke("show").stdout
        result = invoke("set-default", "300d", "--yes", "--json")
        assert result.exit_code == 0, result.stderr
        (warning,) = json.loads(result.stdout)["warnings"]
        assert warning.startswith("1 of the 7 commits that stay had expired when earlier sweeps deleted objects")

    def test_of_a_policy_file(self, made: RetainedRepository) -> None:
        before = self.stated(made)
        file = Path("policy.yaml")
        file.write_text("default: 40d # promised\n")
        file.chmod(0o640)
        made.configuration(retention_policy="policy.yaml")
        for answer in ("n\n", ""):
            assert invoke("set", "d*", "10w", answer=answer).exit_code == 1
            assert file.read_text() == "default: 40d # promised\n"
        assert invoke("set", "d*", "10w", "--yes").exit_code == 0
        result = invoke("set-default", "30d", "--yes")
        assert "SHORTER: main by 10d to 30d, (dangling) by 10d to 30d" in result.stdout
        assert file.read_text() == "default: 30d # promised\nbranches:\n  d*: 10w\n"
        assert file.stat().st_mode & 0o777 == 0o640
        assert invoke("unset", "d*", "--yes").exit_code == 0
        assert file.read_text() == "default: 30d # promised\nbranches: {}\n"
        assert self.stated(made) == before

    def test_a_policy_of_several_repositories_says_so(self, made: RetainedRepository) -> None:
        Path("policy.yaml").write_text("default: 40d\n")
        file = made.configuration(retention_policy="policy.yaml")
        content = yaml.safe_load(file.read_text())
        content["repositories"] = [
            {"repository": content.pop("repository")},
            {"repository": "images", "collection": {"retention_policy": "./policy.yaml"}},
            {"repository": "apart", "collection": {"retention_policy": ""}},
        ]
        file.write_text(yaml.safe_dump(content))
        result = invoke("set-default", "30d", "--yes", "--repository", "repo")
        assert result.exit_code == 0, result.stderr
        assert "WARNING: this is also the policy of images, whose commits are not counted here" in result.stdout
        made.configuration(retention_policy="policy.yaml")
        assert "this is also the policy of" not in invoke("set-default", "40d", "--yes").stdout

    def test_what_somebody_else_set_meanwhile_stays(
        self, made: RetainedRepository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = Path("policy.yaml")

        def change_and_confirm(*_: object, **__: object) -> bool:
            made.rules(9)
            file.write_text("default: 9d")
            return True

        monkeypatch.setattr("click.confirm", change_and_confirm)
        for collection in ({}, {"retention_policy": "policy.yaml"}):
            made.rules(7)
            file.write_text("default: 7d")
            made.configuration(**collection)
            result = invoke("set", "main", "3d")
            assert result.exit_code == Status.CONFIGURATION
            assert "another client changed the rules meanwhile, so nothing was set" in result.stderr
            assert (self.stated(made), file.read_text()) == (
                {"default_retention_days": 9, "branches": None},
                "default: 9d",
            )

    def test_the_first_rules_say_that_every_commit_stays_without_them(self, made: RetainedRepository) -> None:
        made.call("DELETE", "/settings/gc_rules")
        result = invoke("set-default", "4d", "--yes", "--json")
        assert result.exit_code == 0, result.stderr
        answer = json.loads(result.stdout)
        assert answer["diff"][2:] == ["@@ -0,0 +1 @@", "+default: 4d"]
        assert answer["shorter"] == ["every commit stayed under the previous rules"]
        assert answer["commits_expiring"] == answer["commits"]["expired"] > 0

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("set", "main"), "there is no file main. To set the rule of a branch, also give a duration"),
            (("set", "main", "20"), "20 has no unit: write 20d for days, 20h for hours or 20w for weeks"),
            (("unset", "dev"), "the server's rules: there is no rule for dev"),
        ],
    )
    def test_what_is_refused(self, made: RetainedRepository, arguments: tuple[str, ...], words: str) -> None:
        before = self.stated(made)
        result = invoke(*arguments, "--yes")
        assert (result.exit_code, result.stdout) == (Status.CONFIGURATION, "")
        assert words in result.stderr.splitlines()[-1]
        assert self.stated(made) == before

    def test_rules_of_branches_that_are_gone_do_not_stand_in_the_way(self, made: RetainedRepository) -> None:
        made.rules(7, gone=3, lost=3)
        for arguments in (("set", "main", "20d"), ("unset", "lost")):
            assert invoke(*arguments, "--yes").exit_code == 0
        assert self.stated(made) == {"default_retention_days": 7, "branches": [_rule("gone", 3), _rule("main", 20)]}


def _rule(branch: str, days: int) -> dict[str, object]:
    return {"branch_id": branch, "retention_days": days}
