"""Settings of the OpenTelemetry export: environment names of the standard, and values that are rejected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import SettingsError
from penstock.settings import load_settings
from penstock.settings.otel import Otel, find_ignored_values, find_traces_url, parse_pairs
from penstock.settings.reference import render_markdown

CANARY = "sk-canary-0123456789"


def test_standard_environment_names_are_used():
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/base/",
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-api-key={CANARY}",
        "OTEL_RESOURCE_ATTRIBUTES": "env=prod",
        "OTEL_SERVICE_NAME": "gateway",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "500",
        "PENSTOCK_OTEL_CONTENT": "true",
        "PENSTOCK_OTEL_BATCH_RECORDS": "7",
    }
    settings = load_settings(None, environ).otel
    assert find_traces_url(settings) == "http://collector:4318/base/v1/traces"
    assert settings.headers
    assert parse_pairs(settings.headers.reveal()) == {"x-api-key": CANARY}
    assert (settings.service_name, settings.resource_attributes, settings.timeout_ms) == ("gateway", "env=prod", 500)
    assert (settings.content, settings.batch_records) == (True, 7)
    assert CANARY not in repr(settings)


def test_specific_environment_names_take_precedence():
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://all:4318",
        "EXPERIMENTAL_GEN_AI_OTEL_EXPORTER_OTLP_ENDPOINT": "http://genai:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
        "EXPERIMENTAL_GEN_AI_OTEL_EXPORTER_OTLP_HEADERS": "b=2",
        "OTEL_RESOURCE_ATTRIBUTES": "c=3",
        "EXPERIMENTAL_GEN_AI_OTEL_RESOURCE_ATTRIBUTES": "d=4",
    }
    settings = load_settings(None, environ).otel
    assert find_traces_url(settings) == "http://genai:4318/v1/traces"
    assert (settings.headers and settings.headers.reveal(), settings.resource_attributes) == ("b=2", "d=4")
    complete = {**environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://traces.test/x"}
    assert find_traces_url(load_settings(None, complete).otel) == "https://traces.test/x"
    off = {**complete, "EXPERIMENTAL_GEN_AI_OTEL_TRACES_ENABLED": "false"}
    assert find_traces_url(load_settings(None, off).otel) == ""


def test_sdk_and_exporter_variables_turn_the_export_off():
    def find_url(**variables: str) -> str:
        return find_traces_url(
            load_settings(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://all:4318", **variables}).otel
        )

    on = "http://all:4318/v1/traces"
    for value, expected in {"true": "", "TRUE": "", "false": on, "": on, "1": on, "yes": on}.items():
        assert find_url(OTEL_SDK_DISABLED=value) == expected, value
    for value, expected in {"none": "", " none ": "", "otlp": on, "": on, "console,otlp": on, "jaeger": on}.items():
        assert find_url(OTEL_TRACES_EXPORTER=value) == expected, value
    assert find_ignored_values(Otel(sdk_disabled="false", traces_exporter="otlp, none")) == []
    ignored = find_ignored_values(Otel(sdk_disabled="1", traces_exporter="zipkin,otlp"))
    assert [line.partition(" ")[0] for line in ignored] == ["otel.traces_exporter", "otel.sdk_disabled"]


def test_certificate_variables_of_traces_take_precedence(tmp_path: Path):
    files = {name: str(tmp_path / name) for name in ("all", "traces", "client", "key")}
    for path in files.values():
        Path(path).touch()
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://all:4318",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": files["all"],
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": "",
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": files["all"],
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": files["client"],
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": files["all"],
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": files["key"],
    }
    settings = load_settings(None, environ).otel
    # An empty variable counts as one that is not set.
    assert settings.certificate == files["all"]
    assert (settings.client_certificate, settings.client_key) == (files["client"], files["key"])
    specific = {**environ, "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": files["traces"]}
    assert load_settings(None, specific).otel.certificate == files["traces"]


def test_reference_lists_all_names():
    page = render_markdown()
    assert "| `OTEL_EXPORTER_OTLP_ENDPOINT`, `EXPERIMENTAL_GEN_AI_OTEL_EXPORTER_OTLP_ENDPOINT` |" in page


def test_export_is_off_by_default():
    assert find_traces_url(Otel()) == ""


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "otel.endpoint"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "grpc://collector:4317"}, "otel.endpoint"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:{CANARY}@collector"}, "otel.endpoint"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://a/?key={CANARY}"}, "otel.traces_endpoint"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": CANARY}, "otel.headers"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": f"a={CANARY}%0d%0ab: c"}, "otel.headers"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": f"a b={CANARY}"}, "otel.headers"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "x"}, "otel.resource_attributes"),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/none.pem"}, "otel.certificate"),
        ({"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "/none.pem"}, "otel.client_certificate"),
        ({"OTEL_EXPORTER_OTLP_CLIENT_KEY": __file__}, "otel.client_key"),
    ],
)
def test_invalid_values_are_rejected_without_repeating_them(environ: dict[str, str], path: str):
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", **environ})
    assert [problem.path for problem in caught.value.problems] == [path]
    assert CANARY not in str(caught.value)


def test_values_are_not_checked_while_the_export_is_off():
    # Other programs on the machine may use these names in their own ways.
    assert load_settings(None, {"OTEL_EXPORTER_OTLP_HEADERS": "x", "OTEL_RESOURCE_ATTRIBUTES": "y"}).otel.headers


def test_settings_of_the_page_are_valid(tmp_path: Path):
    page = (Path(__file__).parents[3] / "docs/opentelemetry.md").read_text(encoding="utf-8")
    for name in re.findall(r"/etc/penstock/(\S+)", page):
        (tmp_path / name).touch()
    page = page.replace("/etc/penstock/", f"{tmp_path}/")
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "penstock.toml"
    file.write_text(block)
    settings = load_settings(str(file), {}).otel
    assert find_traces_url(settings) == "https://collector.example.com:4318/v1/traces"
    assert parse_pairs(settings.headers.reveal() if settings.headers else "") == {"authorization": "Bearer secret"}
    lines = re.findall(r"^(?:PENSTOCK|OTEL)_\w+=\S+", page, re.MULTILINE)
    environ = dict(line.split("=", 1) for line in lines if "_PROTOCOL" not in line)
    assert load_settings(None, environ).otel.content
