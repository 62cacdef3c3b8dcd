"""Mock secret stores over TLS: AWS Secrets Manager and STS, Microsoft Entra and Azure Key Vault, HashiCorp Vault."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from tests.certificates import write_certificate

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path

AWS_KEY, AWS_SECRET, ASSUMED = "AKIDEXAMPLE", "aws-canary-0123456789", "ASIAASSUMED"
ENTRA_SECRET, ENTRA_TOKEN = "entra-canary-0123456789", "entra-token"
VAULT_TOKEN, VAULT_SECRET_ID = "hvs.canary-0123456789", "approle-canary-0123456789"
APPROLE_TOKEN = "hvs.leased"


class MockSecretStores:
    """One server for all vendors. `kept` holds the stored secrets; with `away` every request gets 503."""

    def __init__(self, folder: Path) -> None:
        self.kept: dict[str, str] = {}
        self.away = False
        self.received_requests: list[tuple[str, str]] = []
        self.ca = folder / "ca.pem"
        key = folder / "key.pem"
        write_certificate(self.ca, key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_class(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def handle_request(
        self, method: str, target: str, headers: Message, body: bytes
    ) -> tuple[int, dict[str, str], object]:
        path = urlsplit(target).path
        if self.away:
            return 503, {}, {}
        if "x-amz-target" in headers or b"Action=AssumeRole" in body:
            return self._handle_aws(headers, body)
        if path.endswith("/oauth2/v2.0/token"):
            return self._handle_entra(body)
        if path.startswith("/secrets/"):
            return self._handle_key_vault(path, headers)
        return self._handle_hashicorp_vault(method, path.removeprefix("/v1/"), headers, body)

    def _handle_aws(self, headers: Message, body: bytes) -> tuple[int, dict[str, str], object]:
        signed = headers.get("authorization", "")
        if not signed.startswith("AWS4-HMAC-SHA256 Credential="):
            return 403, {}, {"__type": "AccessDeniedException"}
        who = signed.partition("Credential=")[2].partition("/")[0]
        if b"Action=AssumeRole" in body:
            role = parse_qs(body.decode())["RoleArn"][0]
            self.received_requests.append(("sts", f"{who} {role}"))
            return 200, {"content-type": "text/xml"}, ASSUME_ROLE_RESPONSE
        name = json.loads(body)["SecretId"]
        self.received_requests.append(("aws", f"{who} {name}"))
        if who not in {AWS_KEY, ASSUMED} or name not in self.kept:
            return 400, {}, {"__type": "ResourceNotFoundException", "message": "no such secret"}
        return 200, {"content-type": "application/x-amz-json-1.1"}, {"Name": name, "SecretString": self.kept[name]}

    def _handle_entra(self, body: bytes) -> tuple[int, dict[str, str], object]:
        form = parse_qs(body.decode())
        if form.get("client_secret") != [ENTRA_SECRET]:
            return 401, {}, {"error": "invalid_client"}
        self.received_requests.append(("entra", form["client_id"][0]))
        return 200, {}, {"token_type": "Bearer", "expires_in": 3600, "access_token": ENTRA_TOKEN}

    def _handle_key_vault(self, path: str, headers: Message) -> tuple[int, dict[str, str], object]:
        if headers.get("authorization") != f"Bearer {ENTRA_TOKEN}":
            # The resource must be a parent domain of the vault's host. For an IP address, that is the part after its
            # first number.
            challenge = f'Bearer authorization="{self.url}/tenant", resource="https://0.0.1:{self.port}"'
            return 401, {"www-authenticate": challenge}, {}
        name = path.removeprefix("/secrets/").strip("/").partition("/")[0]
        self.received_requests.append(("azure", name))
        if name not in self.kept:
            return 404, {}, {"error": {"code": "SecretNotFound"}}
        return (
            200,
            {},
            {"value": self.kept[name], "id": f"{self.url}/secrets/{name}/1", "attributes": {"enabled": True}},
        )

    def _handle_hashicorp_vault(
        self, method: str, path: str, headers: Message, body: bytes
    ) -> tuple[int, dict[str, str], object]:
        if path == "auth/approle/login" and method in {"POST", "PUT"}:
            # An AppRole login has no token yet, and must not send the token of the machine.
            if "x-vault-token" in headers or json.loads(body) != {"role_id": "role", "secret_id": VAULT_SECRET_ID}:
                return 400, {}, {"errors": ["invalid role or secret ID"]}
            return 200, {}, {"auth": {"client_token": APPROLE_TOKEN}}
        # Acts as a policy that allows only `versioned/data/*`.
        is_beyond = path.startswith("versioned/") and not path.startswith("versioned/data/")
        if is_beyond or headers.get("x-vault-token") not in {VAULT_TOKEN, APPROLE_TOKEN}:
            return 403, {}, {"errors": ["permission denied"]}
        self.received_requests.append(("vault", f"{headers.get('x-vault-namespace', '')} {path}"))
        mount, _, rest = path.partition("/")
        if mount == "plain" and path in self.kept:
            return 200, {}, {"data": json.loads(self.kept[path])}
        name = f"{mount}/{rest.removeprefix('data/')}"
        if not rest.startswith("data/") or name not in self.kept:
            return 404, {}, {"errors": []}
        return 200, {}, {"data": {"data": json.loads(self.kept[name]), "metadata": {"version": 1}}}


ASSUME_ROLE_RESPONSE = f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>{ASSUMED}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


def _handler_class(vaults: MockSecretStores) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, fields, content = vaults.handle_request(self.command, self.path, self.headers, body)
            sent = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"content-type": "application/json", **fields, "content-length": str(len(sent))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = do_PUT = _respond  # noqa: N815 - names of the standard library

        def log_message(self, *_: object) -> None:
            """Disables the log output of the server."""

    return Handler
