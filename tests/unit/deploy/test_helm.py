"""Helm chart: values, schema and templates agree, its settings are valid, and what Helm renders is consistent."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import kubernetes_validate
import pytest

from penstock import __version__
from penstock.snapshot.build import build_valid_snapshot
from tests.shape.repository import ROOT
from tests.unit.deploy.artefacts import (
    DEPLOY,
    SECONDS_AFTER_DRAIN,
    check_command,
    load_text,
    needs_helm,
    read_yaml,
    read_yaml_documents,
    run_helm,
    setting_variables,
    unknown_settings_by_file,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

CHART = DEPLOY / "helm/penstock"
VALUES_FILES = sorted((DEPLOY / "helm/values").glob("*.yaml"))
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").rglob("*")) if path.is_file()}
ALL_TEMPLATES = "\n".join(TEMPLATES.values())
DEFAULTS = read_yaml(CHART / "values.yaml")
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)
# The oldest release of Kubernetes that the chart supports, and a current one.
KUBERNETES = "1.29"
KUBERNETES_RELEASES = [KUBERNETES, "1.37"]
# Objects of operators. Kubernetes itself has no schema of them.
OBJECTS_OF_OPERATORS = {"ServiceMonitor"}
# Settings that name files which exist only in the pods.
FILES_OF_PODS = {"TLS_CA", "PENSTOCK_SERVER_TLS_CERTIFICATE_FILE", "PENSTOCK_SERVER_TLS_KEY_FILE"}
# A gateway needs a store or a key; these are the fewest values with which it starts.
KEYS = "--set-string=config=[[keys]]"
DATABASE = [f"--set={name}.existingSecret=s" for name in ("database", "masterKey", "adminKey")]
with_values_files = pytest.mark.parametrize("file", VALUES_FILES, ids=lambda path: path.stem)
# Variables of the chart's own containers, with values such as the templates give them.
CHART_ENVIRONMENT = {
    "PENSTOCK_SERVER_HOST": "0.0.0.0",
    "PENSTOCK_SERVER_PORT": "8787",
    "ENABLE_PROMETHEUS": "true",
    "PENSTOCK_METRICS_LISTEN": "0.0.0.0:9464",
}


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merges values as Helm does: maps are merged, anything else is replaced."""
    merged = copy.deepcopy(base)
    for name, value in over.items():
        both_maps = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both_maps else value
    return merged


def leaf_paths(values: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, value in values.items():
        path = f"{above}{name}"
        if isinstance(value, dict) and value:
            yield from leaf_paths(value, f"{path}.")
        else:
            yield path


def value_at(path: str) -> Any:
    actual: Any = DEFAULTS
    for name in path.split("."):
        actual = actual[name]
    return actual


def named_values() -> set[str]:
    return set(re.findall(r"\.Values\.([A-Za-z.]+[A-Za-z])", ALL_TEMPLATES))


def test_chart_has_the_version_of_the_gateway():
    chart = read_yaml(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_chart_has_values_for_twelve_deployments():
    names = {path.stem for path in VALUES_FILES}
    assert len(names) >= 12
    page = (ROOT / "docs/deploy-kubernetes.md").read_text()
    assert not [name for name in names if f"`{name}.yaml`" not in page]
    assert names >= {"minimal", "ha", "pvc", "external-secrets", "sub-path-ingress", "openshift", "tls"}


@with_values_files
def test_schema_accepts_the_values_file(file: Path):
    VALIDATOR.validate(merge(DEFAULTS, read_yaml(file)))


def test_schema_accepts_the_defaults():
    VALIDATOR.validate(DEFAULTS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica": 2},
        {"replicas": "2"},
        {"image": {"digest": "sha256:1"}},
        {"database": {"url": "postgresql://user:password@host/database"}},
        {"drainSeconds": 3601},
        {"shutdownDelaySeconds": 61},
        {"config": {"server": {"port": 1}}},
        {"ingress": {"hosts": [{"host": "a.example", "paths": ["/"]}]}},
        {"resources": {"limits": {"memory": "2 GB"}}},
        {"listenAddress": "localhost"},
        {"networkPolicy": {"blockedEgress": ["169.254.169.254"]}},
    ],
    ids=json.dumps,
)
def test_schema_rejects_wrong_values(wrong: dict[str, Any]):
    assert not VALIDATOR.is_valid(merge(DEFAULTS, wrong))


def test_schema_describes_exactly_the_values():
    def schema_paths(schema: dict[str, Any], above: str = "") -> Iterator[str]:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        for name, below in schema.get("properties", {}).items():
            yield f"{above}{name}"
            yield from schema_paths(below, f"{above}{name}.")

    def value_paths(values: dict[str, Any], above: str = "") -> Iterator[str]:
        for name, value in values.items():
            yield f"{above}{name}"
            if isinstance(value, dict):
                yield from value_paths(value, f"{above}{name}.")

    # Kubernetes defines the names of single resources, so the schema does not list them.
    matched = {path for path in value_paths(DEFAULTS) if not re.search(r"resources\.\w+\.", path)}
    assert set(schema_paths(SCHEMA)) - {"global"} == matched


def test_templates_name_only_values_that_exist():
    assert len(named_values()) > 60
    for path in named_values():
        value_at(path)


def test_every_value_is_used():
    values = named_values()
    unused = [
        path
        for path in leaf_paths(DEFAULTS)
        # A template that names a map uses all of it.
        if not any(path == name or path.startswith(f"{name}.") for name in values)
    ]
    assert not unused


def test_included_templates_exist():
    defined = re.findall(r'define "([\w.]+)"', ALL_TEMPLATES)
    assert len(defined) == len(set(defined))
    assert set(re.findall(r'include "([\w.]+)"', ALL_TEMPLATES)) == set(defined)


def test_files_name_only_settings_that_exist():
    assert not unknown_settings_by_file("helm")


def test_templates_set_only_settings_that_exist():
    names = re.findall(r"- name: ([A-Z][A-Z_]+)$", ALL_TEMPLATES, re.MULTILINE)
    names += re.findall(r'secretEnv" \(list "([A-Z_]+)"', ALL_TEMPLATES)
    assert len(names) >= 12
    assert set(names) - setting_variables() == {"PENSTOCK_CONFIG"}
    # The entries of Secrets have the names of the settings by default.
    for section in ("database", "masterKey", "adminKey", "redis", "logStore"):
        assert DEFAULTS[section]["key"] in names
    assert DEFAULTS["metrics"]["token"]["key"] in names


@with_values_files
def test_settings_of_the_values_file_are_valid(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    values = read_yaml(file)
    config = values.get("config", "")
    for name in re.findall(r"\$\{(\w+)\}", config):
        monkeypatch.setenv(name, f"value-of-{name.lower()}-for-the-tests")
    extra = {item["name"]: item.get("value", "http://proxy.example:3128") for item in values.get("extraEnv", [])}
    assert extra.keys() <= setting_variables()
    # The file of a certificate authority exists only in the pod.
    extra.pop("TLS_CA", None)
    settings = load_text(config, {**CHART_ENVIRONMENT, **extra}, tmp_path)
    assert build_valid_snapshot(settings).keys == config.count("[[keys]]")


def test_pods_end_later_than_the_gateway():
    (seconds,) = re.findall(r"add \.Values\.preStopSeconds \.Values\.drainSeconds (\d+)", ALL_TEMPLATES)
    assert int(seconds) >= SECONDS_AFTER_DRAIN


def test_commands_of_containers_exist():
    listed = re.findall(r"^\s*args: \[(.*)\]$", ALL_TEMPLATES, re.MULTILINE)
    assert len(listed) >= 4
    for words in listed:
        check_command([word.strip(' "') for word in words.split(",")])


def test_pods_have_no_rights_and_no_variables_of_services():
    pods = {name: text for name, text in TEMPLATES.items() if "containers:" in text}
    assert pods.keys() == {"workload.yaml", "migration.yaml", "health.yaml"}
    for name, text in pods.items():
        containers = len(re.findall(r"^\s*image: ", text, re.MULTILINE))
        assert text.count("penstock.containerSecurityContext") == containers, name
        assert "penstock.podSecurityContext" in text, name
        # A Service named penstock-redis would set variables that look like settings.
        assert "enableServiceLinks: false" in text, name
    assert "readOnlyRootFilesystem: true" in TEMPLATES["_pod.tpl"]


# ── rendered by Helm ────────────────────────────────────────────────────────────────────────────────────────────────


def run_template(*options: str) -> subprocess.CompletedProcess[str]:
    # A Helm that was built from source assumes an old release of Kubernetes.
    return run_helm("template", "release", str(CHART), "--kube-version", KUBERNETES, *options)


def render(*options: str) -> list[dict[str, Any]]:
    done = run_template("--namespace", "ai", *options)
    assert done.returncode == 0, done.stderr
    return read_yaml_documents(done.stdout)


def find(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in objects if item["kind"] == kind]


def pod_specs(objects: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for item in objects:
        if item["kind"] in {"Deployment", "StatefulSet", "Job"}:
            yield item, item["spec"]["template"]["spec"]
        elif item["kind"] == "Pod":
            yield item, item["spec"]


@needs_helm
@with_values_files
def test_helm_accepts_the_values_file(file: Path):
    done = run_helm("lint", "--strict", str(CHART), "--values", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@with_values_files
def test_rendered_objects_are_consistent(file: Path):
    objects = render("--values", str(file))
    values = merge(DEFAULTS, read_yaml(file))
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    (workload,) = [item for item in objects if item["kind"] in {"Deployment", "StatefulSet"}]
    assert workload["kind"] == ("StatefulSet" if values["persistence"]["enabled"] else "Deployment")
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    selectors = [item["spec"]["selector"] for item in find(objects, "Service")]
    selectors += [item["spec"]["selector"]["matchLabels"] for item in find(objects, "PodDisruptionBudget")]
    selectors += [item["spec"]["podSelector"]["matchLabels"] for item in find(objects, "NetworkPolicy")]
    selectors.append(workload["spec"]["selector"]["matchLabels"])
    assert all(selector.items() <= labels for selector in selectors)
    assert bool(find(objects, "Job")) == ("database" in read_yaml(file))
    claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
    for pod_spec, pod in pod_specs(objects):
        check_pod(pod, claims if pod_spec is workload else set(), openshift=values["openshift"])


@needs_helm
@pytest.mark.parametrize("release", KUBERNETES_RELEASES)
@with_values_files
def test_kubernetes_accepts_the_rendered_objects(file: Path, release: str):
    done = run_helm("template", "release", str(CHART), "--kube-version", release, "--values", str(file))
    assert done.returncode == 0, done.stderr
    objects = [item for item in read_yaml_documents(done.stdout) if item["kind"] not in OBJECTS_OF_OPERATORS]
    assert len(objects) >= 4
    for item in objects:
        kubernetes_validate.validate(item, release, strict=True)


@needs_helm
def test_kubernetes_rejects_misspelt_fields():
    (workload,) = find(render(KEYS), "Deployment")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    container["ports"][0]["containersPort"] = container["ports"][0].pop("containerPort")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(workload, KUBERNETES, strict=True)


def check_pod(pod: dict[str, Any], claims: set[str], *, openshift: bool) -> None:
    volumes = {volume["name"] for volume in pod.get("volumes", [])} | claims
    assert ("runAsUser" in pod["securityContext"]) is not openshift
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        context = container["securityContext"]
        assert context == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes
        variables = [variable["name"] for variable in container.get("env", [])]
        assert len(variables) == len(set(variables))
        assert set(variables) - setting_variables() <= {"PENSTOCK_CONFIG"}


@needs_helm
@with_values_files
def test_rendered_settings_are_valid(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    objects = render("--values", str(file))
    for name in re.findall(r"\$\{(\w+)\}", file.read_text()):
        monkeypatch.setenv(name, f"value-of-{name.lower()}-for-the-tests")
    secrets = {
        "PENSTOCK_STORE_URL": "postgresql://user:password@host:5432/penstock",
        "REDIS_URL": "redis://redis:6379",
        "PENSTOCK_LOG_STORE_URL": "clickhouse://user:password@host:8123/penstock",
        "HTTPS_PROXY": "http://proxy.example:3128",
    }
    for pod_spec, pod in pod_specs(objects):
        config = [volume["configMap"]["name"] for volume in pod.get("volumes", []) if volume["name"] == "config"]
        (text,) = [
            map_["data"]["penstock.toml"] for map_ in find(objects, "ConfigMap") if map_["metadata"]["name"] in config
        ] or [""]
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            environ = {
                variable["name"]: variable.get("value") or secrets.get(variable["name"], "x" * 32)
                for variable in container.get("env", [])
                if variable["name"] not in {"PENSTOCK_STORE_MASTER_KEY", *FILES_OF_PODS}
            }
            settings = load_text(text, environ, tmp_path)
        if pod_spec["kind"] in {"Deployment", "StatefulSet"}:
            grace = pod["terminationGracePeriodSeconds"]
            assert grace >= settings.server.drain_seconds + SECONDS_AFTER_DRAIN
            assert not settings.is_loopback


@needs_helm
@pytest.mark.parametrize("missing", ["masterKey", "adminKey"])
def test_database_needs_its_secrets(missing: str):
    done = run_template(*(option for option in DATABASE if missing not in option))
    assert (done.returncode, f"{missing}.existingSecret is needed" in done.stderr) == (1, True), done.stderr


@needs_helm
def test_changed_settings_restart_the_pods():
    def checksum(config: str) -> str:
        objects = render(f"--set-string=config={config}")
        (workload,) = find(objects, "Deployment")
        return workload["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum("[[keys]] # a") != checksum("[[keys]] # b")


@needs_helm
def test_ipv6_address_and_options_are_rendered():
    objects = render(KEYS, "--set=listenAddress=::", "--set=autoscaling.enabled=true", "--set=preStopSeconds=0")
    (workload,) = find(objects, "Deployment")
    assert "replicas" not in workload["spec"]
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    environ = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert (environ["PENSTOCK_SERVER_HOST"], environ["PENSTOCK_METRICS_LISTEN"]) == ("::", "[::]:9464")
    assert "lifecycle" not in container
    (scaler,) = find(objects, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == workload["metadata"]["name"]


@needs_helm
def test_pods_reach_no_service_that_gives_credentials_of_a_cloud():
    (policy,) = find(render(KEYS), "NetworkPolicy")
    blocks = [peer["ipBlock"] for rule in policy["spec"]["egress"] for peer in rule.get("to", []) if "ipBlock" in peer]
    blocked = {address for block in blocks for address in block["except"]}
    assert blocked >= {"169.254.169.254/32", "169.254.170.23/32", "fd00:ec2::254/128", "fd00:ec2::23/128"}


# ── values with which the pods would not start, or would not be reached ─────────────────────────────────────────────

SQLITE = "--set-string=config=[store]\nurl = 'sqlite:////var/lib/penstock/penstock.db'"
DATA_DIR = "\n[store]\ndata_dir = '/var/lib/penstock'"
TLS_FILE = "--set-string=config=server.tls_certificate_file = '/tls.crt'"
TLS_VARIABLE = '--set-json=extraEnv=[{"name": "PENSTOCK_SERVER_TLS_CERTIFICATE_FILE", "value": "/tls.crt"}]'


@needs_helm
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "it has neither a store nor a key"),
        (["--set=persistence.enabled=true"], "it has neither a store nor a key"),
        ([SQLITE, "--set=persistence.enabled=true"], "SQLite belongs to one pod"),
        ([SQLITE, "--set=replicas=1", "--set=autoscaling.enabled=true"], "SQLite belongs to one pod"),
        (["--set-string=config=# [[keys]]"], "it has neither a store nor a key"),
        ([f"{KEYS}{DATA_DIR}"], "SQLite belongs to one pod"),
        ([TLS_FILE], "set tls.existingSecret instead"),
        ([KEYS, TLS_VARIABLE], "set tls.existingSecret instead"),
    ],
)
def test_values_that_cannot_work_are_rejected(options: list[str], words: str):
    done = run_template(*options)
    assert (done.returncode, words in done.stderr) == (1, True), done.stdout[:200] + done.stderr


@needs_helm
@pytest.mark.parametrize(
    "options",
    [
        [KEYS],
        DATABASE,
        [SQLITE, "--set=replicas=1"],
        [SQLITE, *DATABASE],
        ["--set=environmentSecrets={store}"],
        ["--set-string=config=keys = [{name = 'a'\\, key = 'k'}]"],
        ["--set-string=config=[[ keys ]]\nname = 'a'\nkey = 'k'"],
        [f"{KEYS}\n# not sqlite: many pods\n# data_dir = 'x'\n# server.tls_certificate_file = 'x'"],
        [f"{KEYS}{DATA_DIR}", "--set=environmentSecrets={store}"],
        [f"{KEYS}{DATA_DIR}\nurl = 'postgresql://db/penstock'"],
        ["--set-string=config=security.require_key = false"],
        ["--set-string=config=store.master_key_reference = 'x'", "--set=database.existingSecret=s", DATABASE[2]],
    ],
)
def test_values_that_work_are_rendered(options: list[str]):
    assert find(render(*options), "Deployment")


# ── TLS and restoring a backup ──────────────────────────────────────────────────────────────────────────────────────


def probes(container: dict[str, Any]) -> list[dict[str, Any]]:
    names = ("startupProbe", "readinessProbe", "livenessProbe")
    return [container[name]["httpGet"] for name in names if name in container]


@needs_helm
def test_certificate_of_the_gateway_is_mounted_probed_and_tested_over_tls():
    objects = render("--values", "deploy/helm/values/tls.yaml", "--set=tls.certificateKey=chain.pem")
    (workload,) = find(objects, "Deployment")
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert [probe["scheme"] for probe in probes(container)] == ["HTTPS"] * 3
    environ = {variable["name"]: variable.get("value") for variable in container["env"]}
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "tls"]
    # Kubernetes never updates a file that is mounted with `subPath`, so a renewed certificate would not arrive.
    assert mount == {"name": "tls", "mountPath": "/etc/penstock-tls", "readOnly": True}
    assert environ["PENSTOCK_SERVER_TLS_CERTIFICATE_FILE"] == "/etc/penstock-tls/chain.pem"
    assert environ["PENSTOCK_SERVER_TLS_KEY_FILE"] == "/etc/penstock-tls/tls.key"
    assert {"name": "tls", "secret": {"secretName": "ai-example-com"}} in pod["volumes"]
    (test,) = find(objects, "Pod")
    (container,) = test["spec"]["containers"]
    assert "https://release:443" in container["args"]
    (file,) = [word for word in container["args"] if word.endswith(".crt")]
    # The pod of the test gets the certificate, and not its key.
    (volume,) = test["spec"]["volumes"]
    assert volume["secret"]["items"] == [{"key": "chain.pem", "path": file.rpartition("/")[2]}]


@needs_helm
def test_probes_use_plain_http_without_a_certificate():
    (workload,) = find(render(KEYS), "Deployment")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert [probe["scheme"] for probe in probes(container)] == ["HTTP"] * 3


@needs_helm
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_restore_starts_one_pod_that_waits_for_a_backup_and_no_migration(kind: str):
    options = ["--set=restore.enabled=true", "--set=autoscaling.enabled=true", "--set=replicas=3"]
    objects = render(*DATABASE, *options, f"--set=persistence.enabled={str(kind == 'StatefulSet').lower()}")
    # The migration would create an organisation, and then the store would count as used.
    assert not find(objects, "Job")
    assert not find(objects, "HorizontalPodAutoscaler")
    (workload,) = find(objects, kind)
    assert workload["spec"]["replicas"] == 1
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["restore", "-"]
    assert (container["stdin"], container["stdinOnce"]) == (True, True)
    assert not probes(container)
    for item in objects:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
