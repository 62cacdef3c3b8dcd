"""Compose project: every file, variable and setting that it names exists, and nothing is open to the network."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest

from tests.shape.repository import ROOT
from tests.unit.deploy.artefacts import (
    DEPLOY,
    SECONDS_AFTER_DRAIN,
    check_command,
    find_unknown_settings,
    load_text,
    read_yaml,
    setting_variables,
    unknown_settings_by_file,
)

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = DEPLOY / "compose"
INTERPOLATION = re.compile(r"(?<!\$)\$\{([A-Z_]+)(:[?-][^}]*)?\}")
# Services that end by themselves.
SHORT_LIVED = {"prepare"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return read_yaml(FOLDER / "compose.yaml")


def example_variables() -> tuple[set[str], set[str]]:
    """Returns the variables of `.env.example` that need a value, and the optional ones."""
    text = (FOLDER / ".env.example").read_text()
    return set(re.findall(r"^([A-Z_]+)=$", text, re.MULTILINE)), set(re.findall(r"^#([A-Z_]+)=", text, re.MULTILINE))


def fill_in(text: str) -> str:
    """Replaces variables, as Compose does."""
    return INTERPOLATION.sub("secretofthetests", text)


def test_variables_are_those_of_the_example():
    used = dict(INTERPOLATION.findall((FOLDER / "compose.yaml").read_text()))
    needed, optional = example_variables()
    assert {name for name, rest in used.items() if rest.startswith(":?")} == needed
    assert {name for name, rest in used.items() if rest.startswith(":-")} == optional
    assert used.keys() == needed | optional
    assert len(needed) >= 5


def test_mounted_files_and_volumes_exist(project: dict[str, Any]):
    mounts = [mount.split(":") for service in project["services"].values() for mount in service.get("volumes", [])]
    files = [source for source, *_ in mounts if source.startswith(".")]
    assert len(files) >= 6
    assert not [source for source in files if not (FOLDER / source).is_file()]
    assert {source for source, *_ in mounts} - set(files) == project["volumes"].keys()
    # Files of the repository are mounted read-only.
    assert not [mount for mount in mounts if mount[0].startswith(".") and mount[-1] != "ro"]
    build = project["services"]["penstock"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).is_file()


def test_only_gateway_and_board_are_published_and_on_this_machine_only(project: dict[str, Any]):
    ports = {name: service["ports"] for name, service in project["services"].items() if "ports" in service}
    assert ports.keys() == {"penstock", "grafana"}
    assert all(port.startswith("127.0.0.1:") for listed in ports.values() for port in listed)
    private = {name for name, service in project["services"].items() if service["networks"] == ["private"]}
    assert private == project["services"].keys() - ports.keys()
    assert project["networks"]["private"] == {"internal": True}


def test_services_wait_for_healthy_services(project: dict[str, Any]):
    services = project["services"]
    assert {name for name, service in services.items() if "healthcheck" not in service} == SHORT_LIVED
    for name, service in services.items():
        for other, requirement in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other in SHORT_LIVED else "service_healthy"
            assert requirement == {"condition": expected}, (name, other)
    assert services["penstock"]["depends_on"].keys() == {"prepare", "redis", "clickhouse"}


def test_services_have_no_more_rights_than_they_need(project: dict[str, Any]):
    for name, service in project["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name
    assert all(project["services"][name]["read_only"] for name in ("penstock", "prepare"))


def test_no_secret_is_in_the_file(project: dict[str, Any]):
    values = {
        (name, variable): value
        for name, service in project["services"].items()
        for variable, value in service.get("environment", {}).items()
        if re.search(r"PASSWORD|KEY|URL", variable)
    }
    assert len(values) >= 8
    assert not {location for location, value in values.items() if not INTERPOLATION.search(value)}


def test_settings_are_valid(project: dict[str, Any], tmp_path: Path):
    file = (FOLDER / "gateway.toml").read_text()
    for name in ("penstock", "prepare"):
        service = project["services"][name]
        check_command(service.get("command", ["serve"]))
        environ = {variable: fill_in(value) for variable, value in service["environment"].items()}
        assert environ.keys() - {"PENSTOCK_CONFIG"} <= setting_variables()
        assert f"./gateway.toml:{environ['PENSTOCK_CONFIG']}:ro" in service["volumes"]
        settings = load_text(file, environ, tmp_path)
        assert settings.store_url is not None
        assert settings.metrics.enabled
    kind, *command = project["services"]["penstock"]["healthcheck"]["test"]
    assert (kind, command[0]) == ("CMD", "penstock")
    check_command(command[1:])
    grace = int(project["services"]["penstock"]["stop_grace_period"].removesuffix("s"))
    assert grace >= settings.server.drain_seconds + SECONDS_AFTER_DRAIN


def test_redis_evicts_no_counters_of_limits(project: dict[str, Any]):
    settings = project["services"]["redis"]["command"][-1]
    assert "maxmemory-policy noeviction" in settings
    assert "maxmemory-policy noeviction" in (ROOT / "docs/sizing.md").read_text()


def test_files_name_only_settings_that_exist():
    assert not unknown_settings_by_file("compose")
    text = "# server.colour is 1, server.port too\nPENSTOCK_SERVER_COLOUR=1 PENSTOCK_SERVER_PORT=2"
    assert find_unknown_settings(text) == {"server.colour", "PENSTOCK_SERVER_COLOUR"}


def test_prometheus_and_grafana_read_what_is_mounted(project: dict[str, Any], tmp_path: Path):
    services = project["services"]
    prometheus = read_yaml(FOLDER / "prometheus.yml")
    mounts = [mount.split(":") for service in services.values() for mount in service.get("volumes", [])]
    targets = {target: source for source, target, *_ in mounts}
    folder = PurePath(services["prometheus"]["command"][0].partition("=")[2]).parent
    assert {f"{folder}/{name}" for name in prometheus["rule_files"]} <= targets.keys()
    (job,) = prometheus["scrape_configs"]
    metrics = load_text((FOLDER / "gateway.toml").read_text(), {}, tmp_path).metrics
    assert job["job_name"] == "penstock"
    assert job["static_configs"] == [{"targets": [f"penstock:{metrics.listen.rpartition(':')[2]}"]}]
    (source,) = read_yaml(FOLDER / "grafana/datasources.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (boards,) = read_yaml(FOLDER / "grafana/dashboards.yml")["providers"]
    assert targets[f"{boards['options']['path']}/penstock.json"] == "../grafana/penstock.json"
