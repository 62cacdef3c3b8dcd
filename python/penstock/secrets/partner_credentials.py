"""Credentials of guardrail partners that an organisation holds. Checks that have none of their own get these when they
are published or tried.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

from penstock import engine
from penstock.secrets import config_credentials
from penstock.secrets.config_credentials import SplitDocument
from penstock.secrets.guardrail_credentials import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JsonObject = dict[str, Any]
# The parameters `credentials` and `baseURL` that an organisation holds, by partner.
SharedCredentials = dict[str, JsonObject]

CREDENTIALS, BASE_URL = "credentials", "baseURL"


@cache
def _parameter_schemas() -> dict[str, JsonObject]:
    """Returns the JSON Schema of the parameters of each check that takes credentials. Plug-ins may not be loaded yet."""
    return {check["id"]: check[PARAMETERS] for check in engine.guardrail_checks() if CREDENTIALS in check["secrets"]}


@cache
def _ids_by_name() -> dict[str, str]:
    """Returns the id of each check that takes credentials, by its id and its aliases."""
    checks = [check for check in engine.guardrail_checks() if check["id"] in _parameter_schemas()]
    return {name: check["id"] for check in checks for name in (check["id"], *check["aliases"])}


@cache
def checks_by_partner() -> dict[str, list[str]]:
    """Returns the ids of the checks that take credentials, by partner: the part of the id before its dot."""
    partners: dict[str, list[str]] = {}
    for check_id in _parameter_schemas():
        partners.setdefault(check_id.partition(".")[0], []).append(check_id)
    return partners


def credential_names(check_id: str) -> dict[str, bool]:
    """Returns the names of a check's credentials, each with true if it is required. `check_id` may be an alias."""
    schema: JsonObject = _parameter_schemas()[_ids_by_name()[check_id]]["properties"][CREDENTIALS]
    required: list[str] = schema.get("required", [])
    return {name: name in required for name in schema["properties"]}


def find_partner(check: Mapping[str, Any]) -> str | None:
    """Returns the partner whose credentials a check needs from its organisation; `None` if it needs none."""
    check_id = _ids_by_name().get(check["id"])
    if check_id is None or CREDENTIALS in check[PARAMETERS] or not check.get("is_enabled", True):
        return None
    return check_id.partition(".")[0]


def find_partners(checks: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the partners whose credentials checks need from their organisation."""
    return {partner for check in checks if (partner := find_partner(check))}


def fill_credentials(checks: Sequence[JsonObject], shared: SharedCredentials) -> list[JsonObject]:
    """Adds the credentials of the organisation to checks that lack them. Skips a check with a host of its own, where
    its author could read them.
    """
    return [_fill_check(check, shared) for check in checks]


def _fill_check(check: JsonObject, shared: SharedCredentials) -> JsonObject:
    parameters = shared.get(find_partner(check) or "")
    if parameters is None or BASE_URL in check[PARAMETERS]:
        return check
    return {**check, PARAMETERS: {**check[PARAMETERS], **select_parameters(check["id"], parameters)}}


def select_parameters(check_id: str, parameters: JsonObject) -> JsonObject:
    """Returns the parameters for one check of a partner: the credentials that it knows, and the host."""
    names = credential_names(check_id)
    own = {name: value for name, value in parameters[CREDENTIALS].items() if name in names}
    return {**parameters, CREDENTIALS: own}


def sample_check(check_id: str, parameters: JsonObject) -> JsonObject:
    """Returns a check with these credentials. Its other required parameters have sample values, because the engine checks
    hosts and header fields only if no parameter is missing.
    """
    schema = _parameter_schemas()[check_id]
    samples = {
        name: _sample_value(schema["properties"][name]) for name in schema.get("required", []) if name != CREDENTIALS
    }
    return {"id": check_id, PARAMETERS: {**samples, **select_parameters(check_id, parameters)}}


def _sample_value(schema: JsonObject) -> Any:  # noqa: ANN401 - JSON
    if "enum" in schema:
        return schema["enum"][0]
    return [_sample_value(schema["items"])] if schema.get("type") == "array" else "1"


def explain_missing(checks: Sequence[JsonObject], shared: SharedCredentials) -> dict[str, str]:
    """Returns why checks have no credentials, by the path of the parameter."""
    reasons: dict[str, str] = {}
    for index, check in enumerate(checks):
        partner = find_partner(check)
        if partner is None or (partner in shared and BASE_URL not in check[PARAMETERS]):
            continue
        reason = f"is required: the organisation has no credentials of {partner!r} that this guardrail may use"
        if partner in shared:
            reason = "is required: the credentials of the organisation are not sent to another `baseURL`"
        reasons[f"checks[{index}].{PARAMETERS}.{CREDENTIALS}"] = reason
    return reasons


def to_check(row: Mapping[str, Any]) -> JsonObject:
    """Represents stored credentials as a check of the partner, so that masking and binding to an address treat them
    like credentials inside a check.
    """
    base = {BASE_URL: row["base_url"]} if row["base_url"] else {}
    return {"id": checks_by_partner()[row["slug"]][0], PARAMETERS: {CREDENTIALS: row["credentials"], **base}}


def open_parameters(row: Mapping[str, Any], opened: str) -> JsonObject:
    """Returns the parameters `credentials` and `baseURL` of a row; `opened` are its decrypted secrets."""
    divided = SplitDocument([to_check(row)], config_credentials.decode_secrets(opened))
    return cast("JsonObject", config_credentials.join_credentials(divided)[0][PARAMETERS])
