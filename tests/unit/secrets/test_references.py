"""Values that others keep: what they fill in, when they are fetched anew, and that they are kept on."""

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

ONE = SecretLookup("r-1", "one", "aws_sm", {"aws_auth_type": "accessKey"}, "a/b")


class Place:
    """A place that keeps one secret."""

    def __init__(self) -> None:
        self.text: str | None = "first"
        self.asked = 0

    async def fetch(self, _settings: Settings, _place: str, _auth: Mapping[str, Any], _path: str) -> str:
        self.asked += 1
        if self.text is None:
            raise UnavailableError("away")
        return self.text


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place()
    monkeypatch.setattr(backends, "fetch", found.fetch)
    return found


def filled(secrets: SecretCache, kind: str = "aws_sm", **mapping: str | None) -> Any:
    whole = {"target_field": "key", "secret_reference_id": "r-1", "secret_key": None, "value_format": None, **mapping}
    return secrets.fill_mapped_fields([whole], None, {}, {"r-1": {"secret_key": None, "manager_type": kind}})


def refresh(secrets: SecretCache, *questions: SecretLookup) -> bool:
    return asyncio.run(secrets.refresh(questions))


def test_what_is_fresh_is_not_asked_for_again(place: Place):
    secrets = SecretCache(Settings())
    assert refresh(secrets, ONE) is True
    assert refresh(secrets, ONE) is False
    assert place.asked == 1
    assert filled(secrets) == ("first", {})


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
def test_nobody_is_asked_as_this_machine_unless_its_operator_lends_that(place: Place, auth: dict[str, str]):
    question = SecretLookup("r-1", "one", "aws_sm", auth, "a/b")
    secrets = SecretCache(Settings())
    assert (refresh(secrets, question), place.asked, filled(secrets)) == (True, 0, None)
    lent = SecretCache(Settings(identity=Identity(lend=True)))
    assert (refresh(lent, question), place.asked, filled(lent)) == (True, 1, ("first", {}))


def test_another_question_is_asked_at_once_and_its_answer_is_not_the_old_one(place: Place):
    secrets = SecretCache(Settings())
    refresh(secrets, ONE)
    place.text = None
    assert refresh(secrets, SecretLookup("r-1", "one", "aws_sm", ONE.auth, "other")) is True
    assert filled(secrets) is None


def test_what_was_known_is_kept_on_while_its_place_is_away_also_over_a_restart(place: Place):
    before = SecretCache(Settings())
    refresh(before, ONE)
    place.text = None
    after = SecretCache(Settings())
    after.restore_values(before.export_values())
    assert refresh(after, ONE) is False
    assert place.asked == 2
    assert filled(after) == ("first", {})


def test_parts_of_a_secret_fill_fields_by_their_form(place: Place):
    place.text = '{"a":"x","n":5,"o":{"k":1},"t":"{\\"k\\":2}"}'
    secrets = SecretCache(Settings())
    refresh(secrets, ONE)
    assert filled(secrets, secret_key="a")[0] == "x"
    assert filled(secrets, secret_key="n")[0] == "5"
    assert filled(secrets, secret_key="none") is None
    field = {"target_field": "configurations.vertex_service_account_json", "value_format": "json"}
    assert filled(secrets, secret_key="o", **field)[1] == {"vertex_service_account_json": {"k": 1}}
    assert filled(secrets, secret_key="t", **field)[1] == {"vertex_service_account_json": {"k": 2}}


def test_a_secret_of_one_field_is_that_field_where_secrets_are_tables_and_is_found_by_its_name_too(place: Place):
    place.text = '{"password":"x"}'
    secrets = SecretCache(Settings())
    refresh(secrets, ONE)
    assert filled(secrets, "hashicorp_vault")[0] == "x"
    assert filled(secrets, "hashicorp_vault", secret_key="password")[0] == "x"
    assert filled(secrets, "hashicorp_vault", secret_key="none") is None
    assert filled(secrets, "aws_sm")[0] == place.text
    # As it was remembered before.
    secrets.restore_values({"r-1": (b"", "x")})
    assert filled(secrets, "hashicorp_vault")[0] == "x"


def test_what_nobody_needs_any_more_is_forgotten(place: Place):
    secrets = SecretCache(Settings())
    refresh(secrets, ONE)
    refresh(secrets)
    assert (secrets.export_values(), place.asked) == ({}, 1)


AZURE, VAULT = {"azure_vault_url": "https://v.vault.azure.net"}, {"vault_addr": "https://vault.test"}


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
def test_a_way_that_would_ask_as_this_machine_is_refused_where_it_is_written_and_says_what_to_set(
    kind: str, field: str, auth: dict[str, str]
):
    with pytest.raises(InvalidError, match=rf"auth_config\.{field} '{auth[field]}' would .* identity\.lend"):
        check_auth_config(kind, auth, lends=False)
    check_auth_config(kind, auth, lends=True)


def test_a_way_with_what_was_stored_needs_no_lending():
    check_auth_config("hashicorp_vault", {"vault_auth_type": "token", "vault_token": "t", **VAULT}, lends=False)
