"""Management API through the edge: public routes, metrics, and internal paths that must not be reachable."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import MANAGEMENT_API_VERSION, __version__
from tests.integration.raw_http import (
    CHAT_PATH,
    MOCK_HEADERS,
    RawConnection,
    Response,
    chat_body,
    encode_request,
    send_raw_request,
)
from tests.integration.serving import edge_pids, read_metrics, run_gateway
from tests.processes import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Gateway, Mock

INTERNAL_PATHS = ("/internal/records", "/internal/metrics", "/internal/snapshot")


def get_path(gateway: Gateway, path: str, **headers: str) -> Response:
    return send_raw_request(gateway.base_url, path, headers=headers)


def test_health_lists_the_workers(running_gateway: Gateway):
    pids = edge_pids(running_gateway)
    health = get_path(running_gateway, "/v1/health").json()
    assert health["status"] == "success"
    assert health["uptime_seconds"] >= 0
    assert health["workers"] == [{"worker": number} for number in range(1, len(pids) + 1)]
    assert set(pids) < set(running_gateway.pids())


def test_version_reports_release_and_interface(running_gateway: Gateway):
    assert get_path(running_gateway, "/v1/version").json() == {
        "version": __version__,
        "interface": MANAGEMENT_API_VERSION,
    }


def test_edge_responds_to_its_own_routes(running_gateway: Gateway):
    assert [get_path(running_gateway, path).body for path in ("/live", "/ready", "/")] == [
        b"live",
        b"ready",
        b"Penstock says hey!",
    ]
    assert send_raw_request(running_gateway.base_url, "/ready", headers={}, method="HEAD").status == 200


def test_description_is_openapi_with_every_public_route(running_gateway: Gateway):
    response = get_path(running_gateway, "/schema/openapi.json")
    assert (response.get_header("content-type") or "").startswith("application/")
    description = response.json()
    assert description["openapi"].startswith("3.1")
    assert {"/v1/health", "/v1/version", "/metrics"} <= set(description["paths"])
    assert not [path for path in description["paths"] if "internal" in path]


def test_schema_page_loads_no_external_resources(running_gateway: Gateway):
    response = get_path(running_gateway, "/schema")
    assert (response.get_header("content-type") or "").startswith("text/html")
    assert "default-src 'none'" in (response.get_header("content-security-policy") or "")
    assert b"openapi.json" in response.body
    assert b"src=" not in response.body.replace(b"default-src=", b"")
    assert b"https://" not in response.body.replace(b"https://www.w3.org", b"")


def test_unknown_path_returns_404_in_the_envelope(running_gateway: Gateway):
    response = get_path(running_gateway, "/v1/health/nothing")
    assert (response.status, response.json()["success"]) == (404, False)


def test_wrong_method_returns_405(running_gateway: Gateway):
    assert send_raw_request(running_gateway.base_url, "/v1/version", b"{}", {}).status == 405


def test_health_needs_no_key_and_is_not_forwarded(running_gateway: Gateway, provider: Mock):
    assert send_raw_request(running_gateway.base_url, "/v1/health", headers=MOCK_HEADERS).status == 200
    assert not provider.ledger()


def test_one_connection_serves_management_and_model_requests(running_gateway: Gateway):
    with RawConnection(running_gateway.base_url) as connection:
        for _ in range(10):
            assert connection.request("/v1/health", headers={}).json()["status"] == "success"
            assert connection.request(CHAT_PATH, chat_body()).status == 200
        connection.send(
            encode_request("GET", "/v1/version")
            + encode_request("POST", CHAT_PATH, MOCK_HEADERS, chat_body())
            + encode_request("GET", "/live")
        )
        assert [connection.read_response().status for _ in range(3)] == [200, 200, 200]


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_are_off_without_enable_prometheus(running_gateway: Gateway):
    for path in ("/metrics", "/dataservice/metrics"):
        response = get_path(running_gateway, path)
        assert response.status == 404
        assert "ENABLE_PROMETHEUS" in response.body.decode()


def test_metrics_are_valid_for_prometheus(provider: Mock, tmp_path: Path):
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env={"ENABLE_PROMETHEUS": "true"}) as gateway:
        for _ in range(7):
            send_raw_request(gateway.base_url, CHAT_PATH, chat_body())
        send_raw_request(gateway.base_url, CHAT_PATH, chat_body("mock?fault=429"))
        send_raw_request(gateway.base_url, CHAT_PATH, chat_body("mock?fault=cut", stream=True))
        wait_for("the figures", lambda: read_metrics(gateway).get("penstock_records_total", 0) >= 9 or None, 5)
        response = get_path(gateway, "/metrics")
        assert get_path(gateway, "/dataservice/metrics").status == 200
    assert response.get_header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(response.body.decode())}
    requests = {sample.labels["status"]: sample.value for sample in families["penstock_requests"].samples}
    assert (requests["2xx"], requests["4xx"], requests["5xx"]) == (8, 1, 0)
    assert all(family.documentation and family.type != "unknown" for family in families.values()), families
    assert all(sample.labels.get("worker") == "1" for sample in families["penstock_responses_truncated"].samples)
    duration = families["penstock_request_duration_seconds"]
    buckets = [sample.value for sample in duration.samples if sample.name.endswith("_bucket")]
    assert (duration.type, buckets, buckets[-1]) == ("histogram", sorted(buckets), 9)
    # Prometheus rejects a metric family that appears twice.
    names = [line.split()[2] for line in response.body.decode().splitlines() if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))


# ── internal paths ────────────────────────────────────────────────────────────────────────────────────────────────────

TRAVERSAL_PATHS = [
    *INTERNAL_PATHS,
    "/internal",
    "/internal/",
    "//internal/records",
    "/v1/health//internal/records",
    "/v1/health/../internal/records",
    "/v1/health/../../internal/records",
    "/v1/health/..;/internal/records",
    "/v1/health/%2e%2e/%2e%2e/internal/records",
    "/v1/health/%2E%2E/internal/records",
    "/v1/health/.%2e/internal/records",
    "/v1/health%2f..%2f..%2finternal%2frecords",
    "/v1/health/..%2finternal/records",
    "/v1/health/..%5cinternal/records",
    "/v1/health/..\\internal\\records",
    "/schema/../internal/snapshot",
    "/metrics/../internal/snapshot",
    "/metrics/..%2f..%2finternal%2fsnapshot",
    "/dataservice/metrics/%252e%252e/internal/snapshot",
    "/%69nternal/records",
    "/INTERNAL/records",
    "/internal%2frecords",
    "/internal/records;x=1",
    "/v1/../internal/records",
    "/v1/proxy/../../internal/records",
    "/./internal/records",
    "/v1/health?x=/../internal/records",
    "/v1/health%00/internal/records",
    "/v1/health/%0d%0aGET%20/internal/records",
]


@pytest.mark.parametrize("path", TRAVERSAL_PATHS)
def test_internal_paths_are_not_reachable(running_gateway: Gateway, path: str):
    before = running_gateway.records_file.read_bytes() if running_gateway.records_file.exists() else b""
    planted = {"worker": 77, "pid": 4242, "requests": {}}
    for method, body in (("GET", None), ("POST", json.dumps(planted).encode())):
        response = send_raw_request(running_gateway.base_url, path, body, {}, method=method)
        if path.split("?", maxsplit=1)[0] != "/v1/health":
            # 400 or 404 (401 once a key is required): the request had no effect and returned no snapshot.
            assert 400 <= response.status < 500, response
        assert b"epoch" not in response.body
        assert response.get_header("x-penstock-epoch") is None
    after = running_gateway.records_file.read_bytes() if running_gateway.records_file.exists() else b""
    assert b"4242" not in after.removeprefix(before)
    assert 4242 not in edge_pids(running_gateway)


@pytest.mark.parametrize(
    "headers",
    [
        {
            "x-http-method-override": "POST",
            "x-original-url": "/internal/snapshot",
            "x-rewrite-url": "/internal/snapshot",
        },
        {"x-forwarded-path": "/internal/snapshot", "x-forwarded-prefix": "/internal"},
        {"host": "control"},
    ],
)
def test_headers_do_not_reach_internal_paths(running_gateway: Gateway, headers: dict[str, str]):
    for path in ("/internal/snapshot", "/v1/version"):
        response = get_path(running_gateway, path, **headers)
        assert b"epoch" not in response.body
        assert response.status == (404 if path == "/internal/snapshot" else 200)


@pytest.mark.parametrize("target", ["http://control/internal/snapshot", "http://gateway.test/internal/records"])
def test_absolute_form_target_does_not_reach_internal_paths(running_gateway: Gateway, target: str):
    with RawConnection(running_gateway.base_url) as connection:
        connection.send(encode_request("GET", target))
        response = connection.read_response()
    assert 400 <= response.status < 500
    assert b"epoch" not in response.body


def test_request_smuggled_in_a_body_is_not_executed(running_gateway: Gateway):
    """Sends a body that would be a second request to a server that computes the length differently."""
    hidden = encode_request("POST", "/internal/records", {}, b'{"smuggled": 4242}')
    for path in ("/v1/health", "/v1/version"):
        with RawConnection(running_gateway.base_url) as connection:
            response = connection.request(path, hidden, {})
            assert response.status == 405
            assert connection.request("/live", headers={}).status == 200
        both = {"transfer-encoding": "chunked", "content-length": "4"}
        with RawConnection(running_gateway.base_url) as connection:
            connection.send(encode_request("GET", path, both, b"0\r\n\r\n" + hidden))
            connection.read_response()
    assert not [record for record in running_gateway.records(0) if "smuggled" in record]


def test_control_socket_is_accessible_only_to_its_owner(running_gateway: Gateway):
    (folder,) = running_gateway.temporary.iterdir()
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    socket_file = folder / "control.sock"
    assert oct(socket_file.stat().st_mode & 0o777) == "0o600"
    assert socket_file.stat().st_uid == os.getuid()


def test_control_socket_rejects_forwarded_requests(running_gateway: Gateway):
    """Tests the second line of defence, in case the edge fails to block a request."""
    (folder,) = running_gateway.temporary.iterdir()
    transport = httpx2.HTTPTransport(uds=str(folder / "control.sock"))
    with httpx2.Client(transport=transport, base_url="http://control") as client:
        assert client.get("/internal/snapshot", headers={"x-forwarded-for": "192.0.2.1"}).status_code == 404
        assert client.get("/internal/snapshot").headers["x-penstock-epoch"]
