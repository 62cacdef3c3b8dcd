"""Gateway behind reverse proxies: which forwarded client addresses it trusts, and their use in audit logs and sign-in
limits.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.integration.management_client import ADMIN_KEY, Client, expect_error, expect_ok
from tests.integration.serving import run_gateway

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock
    from tests.integration.conftest import StoreFactory

# Leaves out the PostgreSQL variants: unit tests of these resources cover both databases.
ONE_STORE = True

TABLES = {"security": {"trusted_proxies": ["127.0.0.1", "10.0.0.0/8"]}}
SESSIONS_PATH = "/v1/auth/sessions"


def client_forwarded_for(client: Client, content: str) -> Client:
    return Client(client.gateway, client.key, {"x-forwarded-for": content})


def read_last_audited_ip(admin: Client) -> str:
    """Returns the client IP of the newest change in the audit log."""
    now = datetime.now(UTC)
    begin, end = ((now + timedelta(hours=hours)).isoformat().replace("+", "%2B") for hours in (-1, 1))
    organisation = admin.read("/v1/workspaces")["data"][0]["organisation_id"]
    log = admin.read(f"/v1/audit-logs?start_time={begin}&end_time={end}&organisation_id={organisation}")
    return log["records"][0]["client_ip"]


def test_trusts_forwarded_addresses_of_trusted_proxies_only(admin: Client):
    for content, expected in (
        ("192.0.2.8", "192.0.2.8"),
        ("192.0.2.7, 192.0.2.8, 10.0.0.3", "192.0.2.8"),
        ("2001:db8::1", "2001:db8::1"),
        ("10.0.0.4", "10.0.0.4"),
    ):
        expect_ok(client_forwarded_for(admin, content).post("/v1/workspaces", {"name": "w"}))
        assert read_last_audited_ip(admin) == expected
    expect_ok(admin.post("/v1/workspaces", {"name": "w"}))
    assert read_last_audited_ip(admin) == "127.0.0.1"


def test_unlisted_proxy_is_not_trusted(tmp_path: Path, provider: Mock, new_store: StoreFactory):
    with run_gateway(tmp_path, {"mock": {"host": provider.url}}, env=new_store(tmp_path)) as gateway:
        admin = Client(gateway)
        expect_ok(client_forwarded_for(admin, "192.0.2.8").post("/v1/workspaces", {"name": "w"}))
        assert read_last_audited_ip(admin) == "127.0.0.1"


def test_failed_sign_ins_are_delayed_per_address(admin: Client):
    guesser, other = client_forwarded_for(admin, "192.0.2.66"), client_forwarded_for(admin, "192.0.2.67")
    for number in range(103):
        expect_error(guesser.post(SESSIONS_PATH, {"api_key": f"guess {number}"}), 401, "AB05")
    started_at = time.monotonic()
    # The right key is accepted, but only after the delay that the failures caused.
    expect_ok(guesser.post(SESSIONS_PATH, {"api_key": ADMIN_KEY}))
    assert time.monotonic() - started_at > 0.5
    expect_error(other.post(SESSIONS_PATH, {"api_key": "guess"}), 401, "AB05")
    expect_ok(other.post(SESSIONS_PATH, {"api_key": ADMIN_KEY}))
