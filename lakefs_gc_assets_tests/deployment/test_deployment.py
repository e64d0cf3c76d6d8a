"""The files of `deployment/`: the manifest's Dagster on a real PostgreSQL, and names that must match the package."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records.figures import FIGURES
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, loaded_from
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.partitions import key_of
from lakefs_gc_assets.extensions.holdings.overview_command import HELP as OVERVIEW_HELP
from lakefs_gc_assets.extensions.metrics.metrics_command import HELP
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.settings import EMRServerlessSettings
from lakefs_gc_assets_tests.runs.graph_runs import Replaying, failures, replaying
from lakefs_gc_assets_tests.servers.free_ports import free_port

__all__ = ["replaying"]

USER = DATABASE = "dagster"
PASSWORD = "test-postgres-password"
_SECONDS = 900


def _programs() -> Path | None:
    """The program folder of the newest installed server."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    found = shutil.which("initdb")
    return folders[-1] if folders else Path(found).parent if found else None


PROGRAMS = _programs()
needs_postgres = pytest.mark.skipif(PROGRAMS is None, reason="there is no PostgreSQL server (Debian: postgresql)")


@contextmanager
def postgres() -> Iterator[int]:
    """Starts a server with an empty database; yields its port. Root starts it as the package's user."""
    assert PROGRAMS is not None
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-postgres-") as name:
        folder = Path(name)
        (folder / "password").write_text(PASSWORD)
        if user:
            shutil.chown(folder / "password", user)
            shutil.chown(folder, user)
        data = folder / "data"
        made = ["-D", str(data), "-U", USER, "-A", "scram-sha-256", "--pwfile", str(folder / "password"), "--no-sync"]
        subprocess.run([str(PROGRAMS / "initdb"), *made], check=True, capture_output=True, user=user, cwd=folder)
        port = free_port()
        listens = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        server = subprocess.Popen(
            [str(PROGRAMS / "postgres"), "-D", str(data), "-p", str(port), *listens],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            cwd=folder,
        )
        try:
            _wait(server, port)
            create = [str(PROGRAMS / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", USER, DATABASE]
            subprocess.run(create, check=True, env={**os.environ, "PGPASSWORD": PASSWORD})
            yield port
        finally:
            server.terminate()
            server.wait()


def _wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    assert PROGRAMS is not None
    until = time.monotonic() + _SECONDS
    asked = [str(PROGRAMS / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(asked, stdout=subprocess.DEVNULL).returncode:
        assert server.poll() is None and time.monotonic() < until, "PostgreSQL does not start"
        time.sleep(0.1)


FOLDER = Path(__file__).parents[2] / "deployment"


def manifest() -> dict[tuple[str, str], dict[str, Any]]:
    """Objects of the manifest by kind and name."""
    objects = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.slow
@needs_postgres
def test_runs_on_postgresql_as_the_manifest_sets_it_up(
    replaying: Replaying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = manifest()["ConfigMap", "lakefs-gc"]["data"]
    environment = manifest()["ConfigMap", "lakefs-gc-environment"]["data"]
    assert (environment["DAGSTER_POSTGRES_USER"], environment["DAGSTER_POSTGRES_DB"]) == (USER, DATABASE)
    runs = replaying("small", deletes="overlay", max_candidate_share=1, sweep=True)
    with postgres() as port:
        (tmp_path / "dagster.yaml").write_text(files["dagster.yaml"].replace("port: 5432", f"port: {port}"))
        # This server has no certificate.
        for name, value in {**environment, "DAGSTER_POSTGRES_HOST": "127.0.0.1", "PGSSLMODE": "disable"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("DAGSTER_POSTGRES_PASSWORD", PASSWORD)
        monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
        with running.instance() as instance:
            runs = replace(runs, instance=instance)
            opened = runs.open()
            result = runs.make(opened)
            assert result.success, failures(result)
        # The run was stored over a connection that is now closed.
        with running.instance() as instance:
            stored = instance.get_run_by_id(result.run_id)
            assert stored is not None and stored.status is dg.DagsterRunStatus.SUCCESS
            for name in STEPS:
                event = instance.get_latest_materialization_event(dg.AssetKey(name))
                assert event is not None and event.run_id == result.run_id
            assert key_of(opened.run_id) in instance.get_dynamic_partitions("gc_runs_" + runs.repository.facts.id)
        statements = re.findall(r"^#     (.*;)$", (FOLDER / "kubernetes.yaml").read_text(), re.MULTILINE)
        assert PROGRAMS is not None and len(statements) == 3
        psql = [str(PROGRAMS / "psql"), "-h", "127.0.0.1", "-p", str(port), "-U", USER, "-d", DATABASE, "-c"]
        for statement in statements:
            made = [*psql, statement.replace("…", PASSWORD)]
            subprocess.run(made, check=True, env={**os.environ, "PGPASSWORD": PASSWORD}, stdout=subprocess.DEVNULL)
        monkeypatch.setenv("DAGSTER_POSTGRES_USER", "dagster_viewer")
        with running.instance() as instance:
            seen = instance.get_run_by_id(result.run_id)
            assert seen == stored and instance.all_asset_keys()
            with pytest.raises(Exception, match="permission denied for table"):
                instance.delete_run(result.run_id)
            with pytest.raises(Exception, match="permission denied for table"):
                instance.add_dynamic_partitions("gc_runs", ["another"])


def test_the_manifests_configuration_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = manifest()["ConfigMap", "lakefs-gc"]["data"]
    monkeypatch.setenv("LAKEFS_ACCESS_KEY_ID", "key")
    loaded = loaded_from(yaml.safe_load(data["lakefs-gc.yaml"]), "kubernetes.yaml")
    assert loaded.secret_variables == {
        ("lakefs", "secret_access_key"): "LAKEFS_SECRET_ACCESS_KEY",
        ("store", "signing_key"): "LAKEFS_GC_SIGNING_KEY",
    }
    [code] = deployments()["lakefs-gc-code"]["containers"]
    master = f"local[{code['resources']['requests']['cpu']}]"
    assert loaded.configuration.spark.master == master, "a node's other cores would add workers, but no memory"
    text = (FOLDER / "kubernetes.yaml").read_text()
    assert all(f"--from-literal={variable}=" in text for variable in loaded.secret_variables.values())


def test_compose_starts_what_the_manifest_runs_on_a_sample() -> None:
    compose = yaml.safe_load((FOLDER.parent / "compose.yaml").read_text())
    services, postgres_user = compose["services"], manifest()["ConfigMap", "lakefs-gc-environment"]["data"]
    assert {service["image"] for service in services.values()} == {"lakefs-gc-dagster", "postgres:17"}
    assert services["code"]["network_mode"] == "service:lakefs", "the embedded server listens on 127.0.0.1 alone"
    assert [port for service in services.values() for port in service.get("ports", [])] == ["127.0.0.1:3000:3000"]
    environment = services["code"]["environment"]
    folder = Path(services["lakefs"]["command"][-1])
    assert environment["LAKEFS_GC_CONFIG"] == str(folder / "lakefs-gc.yaml")
    assert environment["LAKEFS_GC_PLAYGROUND_SECRET"] == demo._SECRET
    for name, value in running.FEW_WRITES.items():
        assert environment[name] == postgres_user[name] == value, "else thousands of windows take too long"
    home, _, place = services["code"]["volumes"][0].partition(":")
    assert home in compose["volumes"] and folder.is_relative_to(place)
    theirs = yaml.safe_load(manifest()["ConfigMap", "lakefs-gc"]["data"]["dagster.yaml"])
    ours = yaml.safe_load(compose["configs"]["dagster"]["content"])
    database, of_service = ours["storage"]["postgres"]["postgres_db"], services["postgres"]["environment"]
    assert (database["username"], database["db_name"]) == (of_service["POSTGRES_USER"], of_service["POSTGRES_DB"])
    assert database["username"] == postgres_user["DAGSTER_POSTGRES_USER"]
    assert environment["DAGSTER_POSTGRES_PASSWORD"] == of_service["POSTGRES_PASSWORD"]
    assert {**ours, "storage": None} == {**theirs, "storage": None}


def test_the_image_is_built_from_what_is_not_ignored() -> None:
    text = (FOLDER / "Containerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()}
    ignored = (FOLDER.parent / ".dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied


def test_the_manifest_names_what_it_has() -> None:
    objects = manifest()
    [server] = [
        each["grpc_server"]
        for each in yaml.safe_load(objects["ConfigMap", "lakefs-gc"]["data"]["workspace.yaml"])["load_from"]
    ]
    service = objects["Service", server["host"]]["spec"]
    assert service["ports"][0]["port"] == server["port"]
    for (kind, name), each in objects.items():
        if kind == "Deployment":
            pod = each["spec"]["template"]
            assert each["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
            assert ("ServiceAccount", pod["spec"]["serviceAccountName"]) in objects
            volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
            for volume in volumes.values():
                assert "emptyDir" in volume or ("ConfigMap", volume["configMap"]["name"]) in objects
            assert {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]} == volumes.keys()
        if kind == "Service":
            assert ("Deployment", each["spec"]["selector"]["app"]) in objects, name


def deployments() -> dict[str, dict[str, Any]]:
    """Pod specs of all deployments, by name."""
    return {name: each["spec"]["template"]["spec"] for (kind, name), each in manifest().items() if kind == "Deployment"}


@pytest.mark.parametrize("name", deployments())
def test_every_pod_has_as_few_rights_as_it_needs(name: str) -> None:
    pod = deployments()[name]
    [container] = pod["containers"]

    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in (container, *pod.get("initContainers", [])):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert "livenessProbe" in container
    assert "ephemeral-storage" in container["resources"]["requests"].keys() & container["resources"]["limits"].keys()
    assert {mount["name"] for mount in container["volumeMounts"]} == {"configuration", "home", "temporary"}
    assert "--uid 10001" in (FOLDER / "Containerfile").read_text()


def test_only_what_runs_has_the_secrets_of_server_and_store() -> None:
    holders = {
        name
        for name, pod in deployments().items()
        for source in pod["containers"][0]["envFrom"]
        if source.get("secretRef", {}).get("name") == "lakefs-gc-secrets"
    }
    assert holders == {"lakefs-gc-code"}


def test_what_only_shows_has_a_user_of_the_database_that_only_reads() -> None:
    secrets = {
        name: [source["secretRef"]["name"] for source in pod["containers"][0]["envFrom"] if "secretRef" in source]
        for name, pod in deployments().items()
    }
    assert secrets.pop("lakefs-gc-webserver") == ["lakefs-gc-postgres-viewer"]
    assert all("lakefs-gc-postgres" in names for names in secrets.values())


def test_people_look_at_a_webserver_that_launches_nothing() -> None:
    launching = {
        name
        for name, pod in deployments().items()
        if "dagster-webserver" in (command := pod["containers"][0].get("command", [])) and "--read-only" not in command
    }
    assert launching == {"lakefs-gc-operators"}


def test_every_pod_is_reached_by_those_alone_that_are_named() -> None:
    policies = [each["spec"] for (kind, _), each in manifest().items() if kind == "NetworkPolicy"]
    reached: dict[str, list[Any]] = {}
    for policy in policies:
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert all(rule["ports"] for rule in policy["egress"])
        selector = policy["podSelector"]
        names = (
            [selector["matchLabels"]["app"]] if "matchLabels" in selector else selector["matchExpressions"][0]["values"]
        )
        for name in names:
            reached[name] = policy.get("ingress", [])
    assert reached.keys() == deployments().keys()
    assert all(rule["from"] and rule["ports"] for rules in reached.values() for rule in rules)
    [code] = reached["lakefs-gc-code"]
    [callers] = code["from"][0]["podSelector"]["matchExpressions"]
    assert {*callers["values"]} == deployments().keys() - {"lakefs-gc-code"}


def test_who_reaches_the_code_location_and_the_database_may_do_so() -> None:
    for policy in (each["spec"] for (kind, _), each in manifest().items() if kind == "NetworkPolicy"):
        ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
        is_code = policy["podSelector"].get("matchLabels") == {"app": "lakefs-gc-code"}
        assert {53, 5432} <= ports and (443 if is_code else 4000) in ports
    assert manifest()["ConfigMap", "lakefs-gc-environment"]["data"]["PGSSLMODE"] == "require"


def test_the_images_have_what_settings_point_to() -> None:
    text = (FOLDER / "Containerfile").read_text()
    folder, _, name = EMRServerlessSettings().entry_point.removeprefix("local://").rpartition("/")
    assert f"WORKDIR {folder}\n" in text
    assert f"cp lakefs_gc_assets/defs/{name} {folder}/{name}" in text
    mounts = manifest()["Deployment", "lakefs-gc-code"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert f"{CONFIGURATION_VARIABLE}={mounts[0]['mountPath']}/lakefs-gc.yaml" in text
    assert f"DAGSTER_HOME={mounts[1]['mountPath']}" in text


def test_the_image_of_the_webservers_has_the_ui() -> None:
    text = (FOLDER / "Containerfile").read_text()
    dagster, executor = text.split("\nFROM ${SPARK_IMAGE} AS executor\n")
    assert '".[azure,gcs,ui]"' in dagster
    assert '".[azure,gcs]"' in executor


def test_what_installs_and_builds_is_pinned_by_the_lock() -> None:
    text = (FOLDER / "Containerfile").read_text()
    lock = FOLDER.parent / "requirements.lock"
    programs = re.findall(r"RUN (awk '.*') requirements.lock > /tmp/uv.txt", text)
    assert len(programs) == 2
    for program in programs:
        pinned = subprocess.run([*shlex.split(program), str(lock)], capture_output=True, text=True, check=True).stdout
        first, *hashes = pinned.splitlines()
        assert first.startswith("uv==") and hashes
        assert all(line.startswith("    --hash=sha256:") for line in hashes)
        assert not hashes[-1].endswith("\\")
    assert (
        text.count("--require-hashes --requirement /tmp/uv.txt")
        == text.count("--build-constraints requirements.lock")
        == 2
    )
    assert re.search(r"^hatchling==", lock.read_text(), re.MULTILINE)


def test_each_image_installs_in_the_folder_that_the_lock_was_copied_to() -> None:
    for stage in (FOLDER / "Containerfile").read_text().split("\nFROM ")[1:]:
        before, _, _ = stage.partition("RUN awk")
        assert re.findall(r"^WORKDIR (.*)|^COPY .* requirements.lock (.*)", before, re.MULTILINE)[-2:] == [
            ("/src", ""),
            ("", "./"),
        ]


def test_what_numba_compiled_in_the_image_is_where_a_run_may_write() -> None:
    """The pod's root file system is read-only, and numba ignores a cache folder that it cannot write to."""
    pod = deployments()["lakefs-gc-code"]
    cache = manifest()["ConfigMap", "lakefs-gc-environment"]["data"]["NUMBA_CACHE_DIR"]
    [container] = pod["initContainers"]
    assert container["command"][-1] == cache
    [mount] = container["volumeMounts"]
    assert Path(cache).parent == Path(mount["mountPath"]) and mount in pod["containers"][0]["volumeMounts"]
    assert container["image"] == pod["containers"][0]["image"]
    text = (FOLDER / "Containerfile").read_text()
    assert text.count(f"ENV NUMBA_CACHE_DIR={container['command'][2]}\n") == 2


def expressions() -> dict[str, str]:
    """Expressions of alerts and of dashboard panels, by name."""
    [group] = yaml.safe_load((FOLDER / "prometheus-alerts.yaml").read_text())["groups"]
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    return {rule["alert"]: rule["expr"] for rule in group["rules"]} | panels


@pytest.mark.parametrize("name", expressions())
def test_alerts_and_panels_use_figures_that_there_are(name: str) -> None:
    expression = expressions()[name]
    metrics = set(re.findall(r"lakefs_gc_(\w+)", expression))
    assert metrics <= HELP.keys() and (metrics or "node_textfile_mtime_seconds" in expression)
    kinds = set(re.findall(r'kind="(\w+)"', expression))
    figures = {each.removesuffix("_bytes") for each in FIGURES}
    assert kinds <= figures
    assert bool(kinds) == bool(metrics & {"last_run_objects", "last_run_bytes"})


def test_panels_of_the_overview_use_every_figure_of_the_overview() -> None:
    dashboard = json.loads((FOLDER / "grafana-overview.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    used = {name for query in queries for name in re.findall(r"lakefs_gc_(\w+)", query)}
    shown_elsewhere = {"overview_timestamp_seconds", "overview_stored_timestamp_seconds", "overview_live_bytes"}
    assert used == OVERVIEW_HELP.keys() - shown_elsewhere


def test_every_alert_has_a_section_about_what_to_do() -> None:
    page = (FOLDER.parent / "docs" / "how-to" / "alerts.md").read_text()
    [group] = yaml.safe_load((FOLDER / "prometheus-alerts.yaml").read_text())["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    assert re.findall(r"^## (LakefsGc\w+)$", page, re.MULTILINE) == alerts
    for rule in group["rules"]:
        assert rule["annotations"]["runbook"] == f"docs/how-to/alerts.md#{rule['alert'].lower()}"


def test_every_alert_is_tried_where_it_fires_and_where_it_does_not() -> None:
    [group] = yaml.safe_load((FOLDER / "prometheus-alerts.yaml").read_text())["groups"]
    tried = {
        (case["alertname"], bool(case["exp_alerts"]))
        for test in yaml.safe_load((FOLDER / "prometheus-alerts-test.yaml").read_text())["tests"]
        for case in test["alert_rule_test"]
    }
    assert tried == {(rule["alert"], fires) for rule in group["rules"] for fires in (True, False)}


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="there is no promtool: go install github.com/prometheus/prometheus/cmd/promtool@v0.316.0, in six minutes",
)
def test_alerts_fire_as_prometheus_evaluates_them(tmp_path: Path) -> None:
    """Panels are read as rules, which shows that Prometheus can parse their expressions."""
    rules = [{"record": f"panel:{number}", "expr": panel} for number, panel in enumerate(expressions().values())]
    panels = tmp_path / "panels.yaml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for command in (
        ["check", "rules", "--lint=all", "--lint-fatal", str(FOLDER / "prometheus-alerts.yaml"), str(panels)],
        ["test", "rules", str(FOLDER / "prometheus-alerts-test.yaml")],
    ):
        ended = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_the_manifest_has_no_field_that_kubernetes_does_not_know() -> None:
    tool = [sys.executable, "-m", "uv", "tool", "run", "--from", "kubernetes-validate==1.37.0", "kubernetes-validate"]
    if subprocess.run([*tool, "--version"], capture_output=True).returncode:
        pytest.skip("kubernetes-validate cannot be installed here")
    ended = subprocess.run([*tool, "--strict", str(FOLDER / "kubernetes.yaml")], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert (ended.stdout + ended.stderr).count(" passed for ") == len(manifest())


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_every_container_takes_the_image_by_its_digest(tmp_path: Path) -> None:
    """Follows the instructions in kustomization.yaml."""
    shutil.copytree(FOLDER, tmp_path / "deployment")
    file = tmp_path / "deployment" / "kustomization.yaml"
    digest = f"sha256:{'0' * 64}"
    file.write_text(file.read_text().replace("# images:", "images:").replace("#   ", "  ").replace("sha256:…", digest))
    ended = subprocess.run(["kubectl", "kustomize", str(file.parent)], capture_output=True, text=True, check=True)
    pods = [
        each["spec"]["template"]["spec"] for each in yaml.safe_load_all(ended.stdout) if each["kind"] == "Deployment"
    ]
    images = [each["image"] for pod in pods for each in (*pod["containers"], *pod.get("initContainers", []))]
    assert len(images) == len(deployments()) + 1
    assert set(images) == {f"registry.example.com/lakefs-gc-dagster@{digest}"}
