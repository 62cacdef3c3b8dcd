"""Azure managed identity. Saved integrations may use the machine's tokens if the operator allows it; inline requests
may not.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.integration.raw_http import CHAT_PATH, chat_body, send_raw_request
from tests.processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.gateway import Mock
    from tests.integration.management_client import Client

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

TABLES = {"upstream": {"trusted_custom_hosts": ["127.0.0.1"]}}
CLIENT_ASSERTION = "vouched-canary-0123456789"


class MockAzure:
    """The metadata service of a virtual machine, and an Entra ID that trusts the machine's client assertion."""

    def __init__(self) -> None:
        self.received_requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler_class())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def issue_token(self, method: str, target: str, headers: Mapping[str, str], body: str) -> str | None:
        """Returns a token for the machine identity, or for an application with the valid client assertion; `None`
        otherwise.
        """
        at, form = urlsplit(target), {name: values[0] for name, values in parse_qs(body).items()}
        self.received_requests.append(at.path)
        if method == "GET" and headers.get("metadata") == "true":
            return "of-" + parse_qs(at.query).get("client_id", ["the-machine"])[0]
        if form.get("client_assertion") == CLIENT_ASSERTION:
            return f"of-{form['client_id']}-in-{at.path.split('/')[1]}"
        return None

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        azure = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
                token = azure.issue_token(self.command, self.path, dict(self.headers.items()), body)
                credential = json.dumps(
                    {"access_token": token, "expires_in": 3600} if token else {"error": "no"}
                ).encode()
                self.send_response(200 if token else 400)
                self.send_header("content-length", str(len(credential)))
                self.end_headers()
                self.wfile.write(credential)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                """Suppresses the request log."""

        return Handler


@pytest.fixture(scope="module")
def azure() -> Iterator[MockAzure]:
    service = MockAzure()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def environment_variables(azure: MockAzure, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    file = tmp_path_factory.mktemp("workload") / "token"
    file.write_text(CLIENT_ASSERTION)
    return {
        "PENSTOCK_IDENTITY_ALLOW_PROVIDER_USE": "true",
        "AZURE_POD_IDENTITY_AUTHORITY_HOST": azure.url,
        "AZURE_AUTHORITY_HOST": azure.url + "/",
        "AZURE_FEDERATED_TOKEN_FILE": str(file),
    }


ENTRA_OPTIONS = {"azure_entra_tenant_id": "t", "azure_entra_client_id": "c"}
WORKLOAD_OPTIONS = {"azure_workload_tenant_id": "t2", "azure_workload_client_id": "c2"}


@pytest.mark.parametrize(
    ("mode", "more", "token"),
    [
        ("managed", {}, "of-the-machine"),
        ("managed", {"azure_managed_client_id": "m"}, "of-m"),
        ("workload", WORKLOAD_OPTIONS, "of-c2-in-t2"),
        ("entraFederated", ENTRA_OPTIONS, "of-c-in-t"),
    ],
)
def test_integration_uses_a_machine_identity_token(
    admin: Client, azure: MockAzure, provider: Mock, mode: str, more: dict[str, Any], token: str
):
    slug, workspace = f"az-{mode}-{len(more)}".lower(), admin.read("/v1/workspaces")["data"][0]["id"]
    deployment = {"azure_deployment_name": "d", "azure_api_version": "2024-10-21", "azure_model_slug": "mock"}
    configurations = {
        "azure_auth_mode": mode,
        "azure_resource_name": "res",
        "azure_deployment_config": [deployment],
        "custom_host": provider.url,
        **more,
    }
    own = {"name": slug, "slug": slug, "ai_provider_id": "azure-openai", "workspace_id": workspace}
    admin.create("/v1/integrations", {**own, "configurations": configurations})
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"]).key
    sent = {"x-gateway-api-key": key, "content-type": "application/json", "x-gateway-provider": f"@{slug}"}
    azure.received_requests.clear()

    def reaches_provider() -> bool | None:
        # The mock provider has no such path; only the credential of the request matters.
        return (
            send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body("mock"), sent).status not in {400, 401}
            or None
        )

    wait_for("the provider", reaches_provider, 5)
    reaches_provider()
    entries = [entry["headers"]["authorization"] for entry in provider.ledger()]
    assert set(entries) == {f"Bearer {token}"}
    assert len(azure.received_requests) == 1, "one token is fetched, and kept"


def test_inline_request_cannot_use_the_machine_identity(admin: Client, azure: MockAzure, provider: Mock):
    workspace = admin.read("/v1/workspaces")["data"][0]["id"]
    key = admin.with_new_key(workspace_id=workspace, scopes=["completions.write"]).key
    azure.received_requests.clear()
    fields = {f"x-gateway-azure-{name}": "x" for name in ("resource-name", "api-version", "deployment-id")}
    sent = {"x-gateway-api-key": key, "content-type": "application/json", "x-gateway-provider": "azure-openai"}
    host = {"x-gateway-custom-host": provider.url, "x-gateway-azure-auth-mode": "managed"}
    wait_for(
        "the key",
        lambda: send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body("mock"), sent).status != 401 or None,
        5,
    )
    response = send_raw_request(admin.gateway.base_url, CHAT_PATH, chat_body("mock"), {**sent, **fields, **host})
    assert (response.status, b"only a stored provider" in response.body) == (400, True)
    assert not azure.received_requests
    assert not provider.ledger()
