"""Credentials of an organisation for guardrail partners. Checks without their own credentials get these when they are
published or run in a trial.
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
    # The parameters `credentials` and `baseURL` that an organisation stores, by partner.
    SharedCredentials = Mapping[str, JsonObject]

CREDENTIALS, BASE_URL = "credentials", "baseURL"


@cache
def _credential_schemas() -> dict[str, JsonObject]:
    """Returns the JSON Schema of the credentials of each check that takes credentials, by id. Computed on first use,
    because plug-ins are not loaded at import.
    """
    checks = [check for check in engine.guardrail_checks() if CREDENTIALS in check["secrets"]]
    return {check["id"]: check[PARAMETERS]["properties"][CREDENTIALS] for check in checks}


@cache
def checks_by_partner() -> dict[str, list[str]]:
    """Returns the ids of the checks that take credentials, by partner: the part of the id before its dot."""
    partners: dict[str, list[str]] = {}
    for check_id in _credential_schemas():
        partners.setdefault(check_id.partition(".")[0], []).append(check_id)
    return partners


def credential_names(check_id: str) -> dict[str, bool]:
    """Returns the names of a check's credentials. The value is true if the credential is required."""
    schema = _credential_schemas()[check_id]
    required: list[str] = schema.get("required", [])
    return {name: name in required for name in schema["properties"]}


def find_partner(check: Mapping[str, Any]) -> str | None:
    """Returns the partner whose credentials a check needs from its organisation; `None` if it needs none."""
    partner, _, _ = str(check["id"]).partition(".")
    is_partners = check["id"] in checks_by_partner().get(partner, ())
    has_own = CREDENTIALS in check[PARAMETERS] or not check.get("is_enabled", True)
    return partner if is_partners and not has_own else None


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
    """Returns stored credentials as a check of the partner, so that they are masked and bound like the credentials of a
    check.
    """
    base = {BASE_URL: row["base_url"]} if row["base_url"] else {}
    return {"id": checks_by_partner()[row["slug"]][0], PARAMETERS: {CREDENTIALS: row["credentials"], **base}}


def open_parameters(row: Mapping[str, Any], opened: str) -> JsonObject:
    """Returns the parameters `credentials` and `baseURL` of a row; `opened` are its decrypted secrets."""
    divided = SplitDocument([to_check(row)], config_credentials.decode_secrets(opened))
    return cast("JsonObject", config_credentials.join_credentials(divided)[0][PARAMETERS])
