"""A gateway behind proxies: whose word counts about where a request comes from, and what follows from that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.integration.managed import ADMIN_KEY, Client, good, refused
from tests.integration.serving import running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gateway import Mock
    from tests.integration.conftest import NewStore

TABLES = {"security": {"trusted_proxies": ["127.0.0.1", "10.0.0.0/8"]}}
SESSIONS = "/v1/auth/sessions"


def through(client: Client, said: str) -> Client:
    return Client(client.gateway, client.key, {"x-forwarded-for": said})


def seen(admin: Client) -> str:
    """Where the newest change came from, by the audit log."""
    now = datetime.now(UTC)
    begin, end = ((now + timedelta(hours=hours)).isoformat().replace("+", "%2B") for hours in (-1, 1))
    organisation = admin.shown("/v1/workspaces")["data"][0]["organisation_id"]
    log = admin.shown(f"/v1/audit-logs?start_time={begin}&end_time={end}&organisation_id={organisation}")
    return log["records"][0]["client_ip"]


def test_trusted_proxies_are_believed_and_no_further(admin: Client):
    for said, expected in (
        ("192.0.2.8", "192.0.2.8"),
        ("192.0.2.7, 192.0.2.8, 10.0.0.3", "192.0.2.8"),
        ("2001:db8::1", "2001:db8::1"),
        ("10.0.0.4", "10.0.0.4"),
    ):
        good(through(admin, said).post("/v1/workspaces", {"name": "w"}))
        assert seen(admin) == expected
    good(admin.post("/v1/workspaces", {"name": "w"}))
    assert seen(admin) == "127.0.0.1"


def test_who_is_not_listed_is_not_believed(tmp_path: Path, provider: Mock, new_store: NewStore):
    with running(tmp_path, {"mock": {"host": provider.url}}, env=new_store(tmp_path)) as gateway:
        admin = Client(gateway)
        good(through(admin, "192.0.2.8").post("/v1/workspaces", {"name": "w"}))
        assert seen(admin) == "127.0.0.1"


def test_guesses_from_one_place_are_bounded_and_others_still_sign_in(admin: Client):
    guesser, other = through(admin, "192.0.2.66"), through(admin, "192.0.2.67")
    for number in range(100):
        refused(guesser.post(SESSIONS, {"api_key": f"guess {number}"}), 401, "AB05")
    answer = guesser.post(SESSIONS, {"api_key": ADMIN_KEY})
    refused(answer, 429, "AB06", "your address")
    assert answer.get("retry-after") == "60"
    refused(other.post(SESSIONS, {"api_key": "guess"}), 401, "AB05")
    good(other.post(SESSIONS, {"api_key": ADMIN_KEY}))
