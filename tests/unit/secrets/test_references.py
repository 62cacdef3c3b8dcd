"""Secret references: the fields that they fill, when values are fetched again, and how cached values survive an outage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import InvalidError, UnavailableError
from penstock.secrets import backends
from penstock.secrets.references import SecretCache, SecretLookup, check_auth_config
from penstock.settings import Settings
from penstock.settings.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOKUP = SecretLookup("r-1", "one", "aws_sm", {"aws_auth_type": "accessKey"}, "a/b")


class FakeSecretBackend:
    """A secret backend with one secret."""

    def __init__(self) -> None:
        self.text: str | None = "first"
        self.fetch_count = 0

    async def fetch(self, _settings: Settings, _place: str, _auth: Mapping[str, Any], _path: str) -> str:
        self.fetch_count += 1
        if self.text is None:
            raise UnavailableError("away")
        return self.text


@pytest.fixture
def fake_backend(monkeypatch: pytest.MonkeyPatch) -> FakeSecretBackend:
    actual = FakeSecretBackend()
    monkeypatch.setattr(backends, "fetch", actual.fetch)
    return actual


def fill_fields(secrets: SecretCache, kind: str = "aws_sm", **mapping: str | None) -> Any:
    complete = {
        "target_field": "key",
        "secret_reference_id": "r-1",
        "secret_key": None,
        "value_format": None,
        **mapping,
    }
    return secrets.fill_mapped_fields([complete], None, {}, {"r-1": {"secret_key": None, "manager_type": kind}})


def refresh_cache(secrets: SecretCache, *questions: SecretLookup) -> bool:
    return asyncio.run(secrets.refresh(questions))


def test_fresh_value_is_not_fetched_again(fake_backend: FakeSecretBackend):
    secrets = SecretCache(Settings())
    assert refresh_cache(secrets, LOOKUP) is True
    assert refresh_cache(secrets, LOOKUP) is False
    assert fake_backend.fetch_count == 1
    assert fill_fields(secrets) == ("first", {})


@pytest.mark.parametrize(
    "auth",
    [
        {"aws_auth_type": "serviceRole"},
        {"aws_auth_type": "assumedRole"},
        {"azure_auth_mode": "managed"},
        {"azure_auth_mode": "default"},
        {"vault_auth_type": "kubernetes"},
    ],
)
def test_machine_identity_requires_identity_lend(fake_backend: FakeSecretBackend, auth: dict[str, str]):
    lookup = SecretLookup("r-1", "one", "aws_sm", auth, "a/b")
    secrets = SecretCache(Settings())
    assert (refresh_cache(secrets, lookup), fake_backend.fetch_count, fill_fields(secrets)) == (True, 0, None)
    cache_with_provider_identity = SecretCache(Settings(identity=Identity(allow_provider_use=True)))
    assert (
        refresh_cache(cache_with_provider_identity, lookup),
        fake_backend.fetch_count,
        fill_fields(cache_with_provider_identity),
    ) == (True, 1, ("first", {}))


def test_changed_lookup_is_fetched_at_once_without_the_old_value(fake_backend: FakeSecretBackend):
    secrets = SecretCache(Settings())
    refresh_cache(secrets, LOOKUP)
    fake_backend.text = None
    assert refresh_cache(secrets, SecretLookup("r-1", "one", "aws_sm", LOOKUP.auth, "other")) is True
    assert fill_fields(secrets) is None


def test_cached_value_survives_outage_and_restart(fake_backend: FakeSecretBackend):
    before = SecretCache(Settings())
    refresh_cache(before, LOOKUP)
    fake_backend.text = None
    after = SecretCache(Settings())
    after.restore_values(before.export_values())
    assert refresh_cache(after, LOOKUP) is False
    assert fake_backend.fetch_count == 2
    assert fill_fields(after) == ("first", {})


def test_secret_keys_fill_fields_in_their_format(fake_backend: FakeSecretBackend):
    fake_backend.text = '{"a":"x","n":5,"o":{"k":1},"t":"{\\"k\\":2}"}'
    secrets = SecretCache(Settings())
    refresh_cache(secrets, LOOKUP)
    assert fill_fields(secrets, secret_key="a")[0] == "x"
    assert fill_fields(secrets, secret_key="n")[0] == "5"
    assert fill_fields(secrets, secret_key="none") is None
    field = {"target_field": "configurations.vertex_service_account_json", "value_format": "json"}
    assert fill_fields(secrets, secret_key="o", **field)[1] == {"vertex_service_account_json": {"k": 1}}
    assert fill_fields(secrets, secret_key="t", **field)[1] == {"vertex_service_account_json": {"k": 2}}


def test_vault_secret_with_one_field_resolves_to_that_field(fake_backend: FakeSecretBackend):
    fake_backend.text = '{"password":"x"}'
    secrets = SecretCache(Settings())
    refresh_cache(secrets, LOOKUP)
    assert fill_fields(secrets, "hashicorp_vault")[0] == "x"
    assert fill_fields(secrets, "hashicorp_vault", secret_key="password")[0] == "x"
    assert fill_fields(secrets, "hashicorp_vault", secret_key="none") is None
    assert fill_fields(secrets, "aws_sm")[0] == fake_backend.text
    # As an earlier release cached it.
    secrets.restore_values({"r-1": (b"", "x")})
    assert fill_fields(secrets, "hashicorp_vault")[0] == "x"


def test_unused_values_are_evicted(fake_backend: FakeSecretBackend):
    secrets = SecretCache(Settings())
    refresh_cache(secrets, LOOKUP)
    refresh_cache(secrets)
    assert (secrets.export_values(), fake_backend.fetch_count) == ({}, 1)


AZURE, VAULT = {"azure_vault_url": "https://v.vault.azure.net"}, {"vault_addr": "https://vault.example"}


@pytest.mark.parametrize(
    ("kind", "field", "auth"),
    [
        ("aws_sm", "aws_auth_type", {"aws_auth_type": "serviceRole"}),
        ("aws_sm", "aws_auth_type", {"aws_auth_type": "assumedRole", "aws_role_arn": "arn", "aws_region": "r"}),
        ("azure_kv", "azure_auth_mode", {"azure_auth_mode": "managed", **AZURE}),
        ("azure_kv", "azure_auth_mode", {"azure_auth_mode": "default", **AZURE}),
        ("hashicorp_vault", "vault_auth_type", {"vault_auth_type": "kubernetes", "vault_role": "r", **VAULT}),
    ],
)
def test_rejects_machine_identity_and_names_the_setting(kind: str, field: str, auth: dict[str, str]):
    with pytest.raises(
        InvalidError, match=rf"auth_config\.{field} '{auth[field]}' uses the identity .* identity\.allow_provider_use"
    ):
        check_auth_config(kind, auth, lends=False)
    check_auth_config(kind, auth, lends=True)


def test_stored_credentials_need_no_identity_lend():
    check_auth_config("hashicorp_vault", {"vault_auth_type": "token", "vault_token": "t", **VAULT}, lends=False)


class SlowSecretBackend:
    """A secret backend whose hosts do not answer before they are released, and fail if they are broken."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.begun: list[str] = []
        self.broken: set[str] = set()

    async def fetch(self, _settings: Settings, _place: str, auth: Mapping[str, Any], path: str) -> str:
        self.begun.append(path)
        if auth["vault_addr"] in self.broken:
            raise UnavailableError("away")
        if "hanging" in auth["vault_addr"]:
            await self.released.wait()
        return path


def vault_lookup(name: str, host: str, organisation: str) -> SecretLookup:
    return SecretLookup(name, name, "hashicorp_vault", {"vault_addr": f"https://{host}"}, name, organisation)


def test_hanging_secret_managers_do_not_delay_other_secrets(monkeypatch: pytest.MonkeyPatch):
    backend = SlowSecretBackend()
    monkeypatch.setattr(backends, "fetch", backend.fetch)

    async def scenario() -> None:
        secrets, changes = SecretCache(Settings()), 0

        def count_change() -> None:
            nonlocal changes
            changes += 1

        # One host hangs in the same organisation, and ten hosts in another one.
        lookups = [vault_lookup(f"h{number}", "hanging.test", "mine") for number in range(20)]
        lookups += [vault_lookup(f"o{number}", f"hanging-{number % 10}.test", "other") for number in range(60)]
        lookups += [vault_lookup(f"q{number}", "quick.test", "mine") for number in range(10)]
        lookups += [vault_lookup(f"t{number}", "quick.test", "third") for number in range(10)]
        running = secrets.start_refresh(lookups, count_change)
        quick = running[80:]
        await asyncio.wait_for(asyncio.gather(*quick), 5)
        assert changes == len(quick) == 20
        begun = [name for name in backend.begun if name[0] in "ho"]
        assert [sum(name[0] == kind for name in begun) for kind in "ho"] == [2, 6]
        # A fetch in progress is not started again, and a fetch whose secret is no longer used is cancelled.
        assert [task.done() for task in secrets.start_refresh(lookups[:1], count_change)] == [False]
        await asyncio.sleep(0)
        assert all(task.cancelled() for task in running[20:80])
        backend.released.set()
        assert await secrets.refresh(lookups[:1]) is True
        await secrets.stop()

    asyncio.run(scenario())


def test_failing_secret_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch):
    backend, clock = SlowSecretBackend(), [1000.0]
    monkeypatch.setattr(backends, "fetch", backend.fetch)
    monkeypatch.setattr("penstock.secrets.references.time.monotonic", lambda: clock[0])
    lookup = vault_lookup("one", "broken.test", "mine")
    backend.broken.add("https://broken.test")

    async def scenario() -> None:
        secrets = SecretCache(Settings())
        delays: list[float] = []
        for _ in range(9):
            await secrets.refresh([lookup])
            begun, delay = len(backend.begun), 0
            while len(backend.begun) == begun:
                delay += 1
                clock[0] += 1
                await secrets.refresh([lookup])
                delays += [delay] if len(backend.begun) > begun else []
        assert delays == [5, 10, 20, 40, 80, 160, 300, 300, 300]
        # A success ends the back-off.
        backend.broken.clear()
        clock[0] += 300
        assert await secrets.refresh([lookup]) is True
        begun = len(backend.begun)
        clock[0] += Settings().secrets.refresh_seconds + 1
        backend.broken.add("https://broken.test")
        await secrets.refresh([lookup])
        clock[0] += 5
        await secrets.refresh([lookup])
        assert len(backend.begun) == begun + 2
        assert secrets.export_values()["one"][1] == "one"

    asyncio.run(scenario())
