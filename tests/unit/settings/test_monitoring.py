"""Settings of metrics and of the process log: addresses, labels, and names in the environment."""

from __future__ import annotations

import pytest

from penstock.errors import SettingsError
from penstock.settings import load_settings
from penstock.settings.monitoring import optional_labels, parse_listen_address


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::]:0", ("::", 0)), ("0.0.0.0:65535", ("0.0.0.0", 65535))],
)
def test_listen_address_is_an_ip_address_and_a_port(text: str, address: tuple[str, int]):
    assert parse_listen_address(text) == address


@pytest.mark.parametrize(
    "text", ["9464", ":9464", "localhost:9464", "127.0.0.1", "127.0.0.1:x", "::1:9464", "[127.0.0.1]:1", "[::1]:65536"]
)
def test_other_addresses_are_rejected(text: str):
    with pytest.raises(SettingsError, match=r"metrics\.listen.*expected an IP address and a port"):
        load_settings(None, {"ENABLE_PROMETHEUS": "true", "PENSTOCK_METRICS_LISTEN": text})


def test_port_of_its_own_needs_metrics():
    with pytest.raises(SettingsError, match=r"metrics\.listen: needs metrics\.enabled = true"):
        load_settings(None, {"PENSTOCK_METRICS_LISTEN": "127.0.0.1:9464"})


def test_labels_come_from_the_list_and_the_flag():
    env = {
        "PROMETHEUS_INCLUDE_MODEL_LABEL": "true",
        "PENSTOCK_METRICS_LABELS": "workspace, model, metadata_team, workspace",
        "SERVICE_NAME": "ai",
        "NODE_ENV": "production",
    }
    settings = load_settings(None, env)
    assert optional_labels(settings) == ("model", "workspace", "metadata_team")
    assert (settings.metrics.app, settings.metrics.environment) == ("ai", "production")


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ("colour", "'colour' is not known; allowed: model, config_name, api_key_name, workspace, or `metadata_`"),
        ("metadata_", "'metadata_' is not known"),
        ("metadata_a-b, metadata_a.b", "have the same name in Prometheus: 'metadata_a_b'"),
        (",".join(f"metadata_{number}" for number in range(17)), "has 17 labels; at most 16 are allowed"),
    ],
)
def test_unusable_labels_are_reported(labels: str, problem: str):
    with pytest.raises(SettingsError, match=problem.replace(".", r"\.")):
        load_settings(None, {"PENSTOCK_METRICS_LABELS": labels})
