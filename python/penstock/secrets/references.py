"""Secret references: auth config of each secret manager, and a cache of the fetched values."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import fields
from sqlalchemy import select

from penstock.errors import DecryptionError, PenstockError, SettingsError, UnavailableError
from penstock.fair_slots import FairSlots
from penstock.fetch import DestinationError, parse_endpoint
from penstock.ids import URL_PATTERN
from penstock.schemas import convert_value, field_error
from penstock.secrets import backends
from penstock.secrets.mappings import OPTION_PREFIX
from penstock.store.tables import integrations, secret_references

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy import RowMapping
    from sqlalchemy.ext.asyncio import AsyncConnection

    from penstock.fetch import Fetcher
    from penstock.secrets.vault import Vault
    from penstock.settings import Settings

log = logging.getLogger("penstock")

# First and maximum delay before the next attempt after a failed fetch. The delay doubles with each further failure.
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 5.0, 300.0

# Maximum numbers of fetches at once: in total, of one organisation, and of one organisation from one secret manager. So
# managers that do not respond leave slots for the secrets of other tenants.
MAX_FETCHES, MAX_FETCHES_PER_ORGANISATION, MAX_FETCHES_PER_HOST = 24, 6, 2

NonEmptyText = Annotated[str, Meta(min_length=1, max_length=4096)]
Url = Annotated[str, Meta(pattern=URL_PATTERN, max_length=2048)]


class AuthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of one authentication method of a secret manager."""


class AwsAccessKey(AuthConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication with an AWS access key."""

    aws_auth_type: Literal["accessKey"]
    aws_access_key_id: NonEmptyText
    aws_secret_access_key: NonEmptyText
    aws_region: NonEmptyText


class AwsAssumedRole(AuthConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication with an IAM role that the machine's own identity assumes."""

    aws_auth_type: Literal["assumedRole"]
    aws_role_arn: NonEmptyText
    aws_external_id: NonEmptyText | None = None
    aws_region: NonEmptyText


class AwsServiceRole(AuthConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication with the machine's own IAM role."""

    aws_auth_type: Literal["serviceRole"]
    aws_region: NonEmptyText | None = None


class AzureEntraApplication(AuthConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication with an application registered in Microsoft Entra."""

    azure_auth_mode: Literal["entra"]
    azure_entra_tenant_id: NonEmptyText
    azure_entra_client_id: NonEmptyText
    azure_entra_client_secret: NonEmptyText
    azure_vault_url: Url


class AzureManagedIdentity(AuthConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication with a managed identity of the machine."""

    azure_auth_mode: Literal["managed"]
    azure_managed_client_id: NonEmptyText | None = None
    azure_vault_url: Url


class AzureDefaultIdentity(AuthConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication with the default Azure credential chain of the machine."""

    azure_auth_mode: Literal["default"]
    azure_vault_url: Url


class VaultToken(AuthConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication with a Vault token."""

    vault_auth_type: Literal["token"]
    vault_addr: Url
    vault_token: NonEmptyText
    vault_namespace: NonEmptyText | None = None


class VaultAppRole(AuthConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication with a Vault AppRole."""

    vault_auth_type: Literal["approle"]
    vault_addr: Url
    vault_role_id: NonEmptyText
    vault_secret_id: NonEmptyText
    vault_namespace: NonEmptyText | None = None


class VaultKubernetes(AuthConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Authentication with the Kubernetes service account of the pod."""

    vault_auth_type: Literal["kubernetes"]
    vault_addr: Url
    vault_role: NonEmptyText
    vault_namespace: NonEmptyText | None = None


# Authentication of each secret manager: the field that selects the method, and the struct of each method.
AUTH_CONFIGS: dict[str, tuple[str, dict[str, type[AuthConfig]]]] = {
    "aws_sm": (
        "aws_auth_type",
        {"accessKey": AwsAccessKey, "assumedRole": AwsAssumedRole, "serviceRole": AwsServiceRole},
    ),
    "azure_kv": (
        "azure_auth_mode",
        {"entra": AzureEntraApplication, "managed": AzureManagedIdentity, "default": AzureDefaultIdentity},
    ),
    "hashicorp_vault": (
        "vault_auth_type",
        {"token": VaultToken, "approle": VaultAppRole, "kubernetes": VaultKubernetes},
    ),
}


# Fields that contain the URL of a secret manager.
URL_FIELDS = ("vault_addr", "azure_vault_url")


def describe_auth_configs() -> str:
    """Returns a description of the fields of each authentication method. Optional fields end with a question mark."""
    descriptions: list[str] = []
    for kind, (field, methods) in AUTH_CONFIGS.items():
        each: list[str] = []
        for method, config_type in methods.items():
            method_fields = [item for item in fields(config_type) if item.name != field]
            each.append(f"`{method}` ({', '.join(item.name + '?' * (not item.required) for item in method_fields)})")
        descriptions.append(f"{kind} by {field} {', '.join(each)}")
    return "; ".join(descriptions)


def auth_config_type(kind: str, auth_config: Mapping[str, Any]) -> type[AuthConfig]:
    """Returns the struct of the authentication method that `auth_config` selects. Raises a validation error if the
    method is unknown.
    """
    field, methods = AUTH_CONFIGS[kind]
    method = auth_config.get(field)
    if method not in methods:
        raise field_error(f"auth_config.{field}", f"{method!r} is not allowed: use one of {', '.join(methods)}")
    return methods[method]


def check_auth_config(
    kind: str, auth_config: Mapping[str, Any], *, lends: bool, fetcher: Fetcher | None = None
) -> None:
    """Validates the auth config of a secret manager. Rejects unknown and missing fields, and a URL that the address
    policy of `fetcher` does not allow. Rejects the identity of this machine, unless `lends` allows its use.
    """
    config_type = auth_config_type(kind, auth_config)
    convert_value("auth_config", config_type, dict(auth_config))
    for name in URL_FIELDS:
        if fetcher is None or name not in auth_config:
            continue
        try:
            fetcher.check_name(parse_endpoint(auth_config[name]))
        except DestinationError as error:
            raise field_error(f"auth_config.{name}", error.message) from None
    field = backends.machine_identity_field(auth_config)
    if field and not lends:
        reason = f"{auth_config[field]!r} uses the identity of the gateway's machine, which its operator does not allow"
        raise field_error(
            f"auth_config.{field}",
            f"{reason}; hint: enable the setting identity.allow_provider_use, or choose another authentication method",
        )


class MasterKeyReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Location of the master key, with the fields of a secret reference."""

    manager_type: Literal["aws_sm", "azure_kv", "hashicorp_vault"]
    auth_config: dict[str, Any]
    secret_path: str
    secret_key: str | None = None


async def resolve_master_key(settings: Settings) -> Settings:
    """Returns the settings with the master key fetched from a secret manager, if they refer to one. Raises
    SettingsError if that fails.
    """
    reference = settings.store.master_key_reference
    if reference is None or settings.store.master_key:
        return settings
    name = "store.master_key_reference"
    try:
        parsed = msgspec.json.decode(reference.reveal(), type=MasterKeyReference)
        # The operator wrote this reference, so it may use the machine's identity.
        check_auth_config(parsed.manager_type, parsed.auth_config, lends=True)
        text = await backends.fetch(
            settings, parsed.manager_type, parsed.auth_config, parsed.secret_path, is_operators=True
        )
    except msgspec.MsgspecError as error:
        raise SettingsError(f"{name} is not allowed: {error}") from None
    except PenstockError as error:
        raise SettingsError(f"{name}: {error.message}") from None
    secret = _select_field(
        text if parsed.secret_key or parsed.manager_type not in JSON_OBJECT_MANAGERS else _single_field_value(text),
        parsed.secret_key,
        None,
    )
    if not isinstance(secret, str):
        raise SettingsError(f"{name}: the secret has no field {parsed.secret_key!r}")
    return settings.with_master_key(secret.strip())


# Secret managers whose secrets are always JSON objects.
JSON_OBJECT_MANAGERS = frozenset({"hashicorp_vault"})


class FetchedSecret(msgspec.Struct, frozen=True):
    """Fetched value and the digest of the lookup that returned it. `due` is the monotonic time of the next fetch, and
    `failures` the number of failed fetches since the last success.
    """

    lookup_digest: bytes
    text: str | None
    due: float
    failures: int = 0


class SecretLookup(msgspec.Struct, frozen=True):
    """Everything that is needed to fetch the secret of one reference."""

    id: str
    slug: str
    source: str
    # Complete auth config; `None` if its sealed part cannot be decrypted.
    auth: dict[str, Any] | None
    path: str
    organisation_id: str = ""

    @property
    def digest(self) -> bytes:
        """Returns a hash that identifies the lookup without storing its credentials."""
        return hashlib.sha256(msgspec.json.encode([self.source, self.auth, self.path])).digest()

    @property
    def host(self) -> str:
        """Returns the URL of the secret manager, or its type and region, for the limit of fetches per manager."""
        auth = self.auth or {}
        return next((auth[name] for name in URL_FIELDS if name in auth), f"{self.source} {auth.get('aws_region')}")


class SecretCache:
    """Cache of values from secret managers. Fetches values on first use, refreshes them, and keeps the old value while
    the secret manager is unavailable.
    """

    def __init__(self, settings: Settings) -> None:
        """Creates an empty cache."""
        self._settings = settings
        self._values: dict[str, FetchedSecret] = {}
        # Fetches in progress, by id of the reference: the lookup and its task.
        self._running: dict[str, tuple[SecretLookup, asyncio.Task[bool]]] = {}
        self._slots = FairSlots(MAX_FETCHES, MAX_FETCHES_PER_ORGANISATION, MAX_FETCHES_PER_HOST)

    def fill_mapped_fields(
        self,
        mappings: Iterable[Mapping[str, Any]],
        key: str | None,
        configurations: Mapping[str, Any],
        references: Mapping[str, Mapping[str, Any]],
    ) -> tuple[str | None, dict[str, Any]] | None:
        """Returns the key and configuration of an integration with the mapped fields filled in. Returns `None` if a
        value is missing. `references` are the rows of the secret references.
        """
        filled = dict(configurations)
        for mapping in mappings:
            reference = mapping["secret_reference_id"]
            fetched = self._values.get(reference)
            if fetched is None or fetched.text is None or reference not in references:
                return None
            text, part = fetched.text, mapping["secret_key"] or references[reference]["secret_key"]
            if not part and references[reference]["manager_type"] in JSON_OBJECT_MANAGERS:
                text = _single_field_value(text)
            value = _select_field(text, part, mapping["value_format"])
            if value is None:
                return None
            if mapping["target_field"] == "key":
                # The stored secret may end with a line break.
                key = value.strip() if isinstance(value, str) else msgspec.json.encode(value).decode()
            else:
                filled[mapping["target_field"].removeprefix(OPTION_PREFIX)] = value
        return key, filled

    def restore_values(self, saved: Mapping[str, tuple[bytes, str]]) -> None:
        """Loads the values of an earlier run. They are refreshed at the first opportunity."""
        self._values = {name: FetchedSecret(lookup_digest, text, 0.0) for name, (lookup_digest, text) in saved.items()}

    def export_values(self) -> dict[str, tuple[bytes, str]]:
        """Returns the cached values, which `restore_values` accepts after a restart."""
        return {
            name: (value.lookup_digest, value.text) for name, value in self._values.items() if value.text is not None
        }

    async def fetch_new(self, questions: Iterable[SecretLookup], seconds: float, on_change: Callable[[], None]) -> None:
        """Fetches values that were not fetched before and waits for at most `seconds`. Slower fetches continue in the
        background. Calls `on_change` for each value that changed.
        """
        new = [lookup for lookup in questions if not self._was_fetched(lookup)]
        # Imports the client libraries first, so that this does not count towards the time limit.
        for manager in {lookup.source for lookup in new}:
            # A missing library is ignored here, because each fetch reports it.
            with suppress(UnavailableError):
                await backends.load_backend(manager)
        if tasks := [self._start_fetch(lookup, on_change) for lookup in new]:
            await asyncio.wait(tasks, timeout=seconds)

    async def refresh(self, questions: Iterable[SecretLookup], seconds: float | None = None) -> bool:
        """Fetches new, changed and outdated values and waits for them, at most `seconds`. Returns true if a value
        changed.
        """
        tasks = self.start_refresh(questions)
        if not tasks:
            return False
        done, _ = await asyncio.wait(tasks, timeout=seconds)
        changes = [task.result() for task in done]
        return any(changes)

    def start_refresh(
        self, questions: Iterable[SecretLookup], on_change: Callable[[], None] = lambda: None
    ) -> list[asyncio.Task[bool]]:
        """Begins to fetch new, changed and outdated values, and forgets unused ones. Calls `on_change` for each value
        that changed, as soon as it arrives. Returns the fetches in progress.
        """
        lookups = list(questions)
        self._values = {lookup.id: value for lookup in lookups if (value := self._values.get(lookup.id))}
        for name in self._running.keys() - {lookup.id for lookup in lookups}:
            self._running.pop(name)[1].cancel()
        now = time.monotonic()
        due = [lookup for lookup in lookups if not (self._was_fetched(lookup) and self._values[lookup.id].due > now)]
        return [self._start_fetch(lookup, on_change) for lookup in due]

    async def stop(self) -> None:
        """Cancels the fetches in progress."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _was_fetched(self, lookup: SecretLookup) -> bool:
        value = self._values.get(lookup.id)
        return value is not None and value.lookup_digest == lookup.digest

    def _start_fetch(self, lookup: SecretLookup, on_change: Callable[[], None]) -> asyncio.Task[bool]:
        running = self._running.get(lookup.id)
        if running is not None:
            if running[0] == lookup:
                return running[1]
            running[1].cancel()
        task = asyncio.create_task(self._fetch_secret(lookup, on_change))
        self._running[lookup.id] = lookup, task
        return task

    async def _fetch_secret(self, lookup: SecretLookup, on_change: Callable[[], None]) -> bool:
        try:
            async with self._slots.acquire(lookup.organisation_id, lookup.host):
                text, failure = await self._fetch_text(lookup), None
        except PenstockError as error:
            text, failure = None, error
        except Exception as error:  # noqa: BLE001 - one failed fetch must not end the others; a traceback may contain the secret
            text, failure = None, UnavailableError(f"unexpected error {type(error).__name__}")
        finally:
            if self._running.get(lookup.id, (None,))[0] is lookup:
                del self._running[lookup.id]
        before = self._values.get(lookup.id)
        if failure is None:
            fetched = FetchedSecret(lookup.digest, text, time.monotonic() + self._settings.secrets.refresh_seconds)
        else:
            fetched = self._failed_fetch(lookup, before, failure)
        self._values[lookup.id] = fetched
        is_changed = before is None or before.text != fetched.text
        if is_changed:
            on_change()
        return is_changed

    async def _fetch_text(self, lookup: SecretLookup) -> str:
        if lookup.auth is None:
            raise DecryptionError("the stored auth config cannot be decrypted")
        if backends.machine_identity_field(lookup.auth) and not self._settings.identity.allow_provider_use:
            raise UnavailableError(
                "it uses the identity of the gateway's machine, which its operator does not allow: `identity.allow_provider_use`"
            )
        return await backends.fetch(self._settings, lookup.source, lookup.auth, lookup.path)

    def _failed_fetch(self, lookup: SecretLookup, before: FetchedSecret | None, error: PenstockError) -> FetchedSecret:
        is_same = before is not None and before.lookup_digest == lookup.digest
        failures = before.failures + 1 if before and is_same else 1
        seconds = min(MIN_RETRY_SECONDS * 2 ** min(failures - 1, 10), MAX_RETRY_SECONDS)
        log.error(
            "cannot fetch the secret %r from %s, next attempt in %d s: %s",
            lookup.slug,
            lookup.source,
            seconds,
            error,
        )
        # The old value remains in use until a new one arrives, unless it is the result of another lookup.
        text = before.text if before and is_same else None
        return FetchedSecret(lookup.digest, text, time.monotonic() + seconds, failures)


async def load_secret_lookups(connection: AsyncConnection, vault: Vault) -> list[SecretLookup]:
    """Reads the secret references that integrations use, and returns their lookups."""
    mapped = (await connection.execute(select(integrations.c.secret_mappings))).scalars()
    needed = {mapping["secret_reference_id"] for listed in mapped for mapping in listed}
    if not needed:
        return []
    rows = await connection.execute(select(secret_references).where(secret_references.c.id.in_(needed)))
    return [await _build_lookup(connection, vault, row) for row in rows.mappings()]


async def _build_lookup(connection: AsyncConnection, vault: Vault, row: RowMapping) -> SecretLookup:
    sealed = row["sealed_auth_config"]
    try:
        hidden: dict[str, Any] = msgspec.json.decode(await vault.open(connection, sealed, row["id"])) if sealed else {}
    except DecryptionError:
        # `_fetch_secret` logs this error. One broken reference must not prevent the others from being fetched.
        return SecretLookup(
            row["id"], row["slug"], row["manager_type"], None, row["secret_path"], row["organisation_id"]
        )
    auth = {**row["auth_config"], **hidden}
    return SecretLookup(row["id"], row["slug"], row["manager_type"], auth, row["secret_path"], row["organisation_id"])


def _single_field_value(text: str) -> str:
    """Returns the value of a secret that has exactly one field. Returns the text unchanged if it has more."""
    try:
        values = list(msgspec.json.decode(text, type=dict[str, Any]).values())
    except msgspec.MsgspecError:
        # An older release cached the plain value instead of a JSON object.
        return text
    return values[0] if len(values) == 1 and isinstance(values[0], str) else text


def _select_field(text: str, key: str | None, form: str | None) -> Any:  # noqa: ANN401 - JSON
    """Returns one field of a secret that is a JSON object, or the complete secret if `key` is empty. Returns `None` if
    that fails.
    """
    try:
        if key:
            field: Any = msgspec.json.decode(text, type=dict[str, Any]).get(key)
            if form == "json" and isinstance(field, str):
                return msgspec.json.decode(field)
            return field if form == "json" or field is None or isinstance(field, str) else str(field)
        return msgspec.json.decode(text) if form == "json" else text
    except msgspec.MsgspecError:
        return None
