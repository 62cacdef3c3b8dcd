"""Credentials in the parameters of guardrail checks. They are found by the name of the parameter and by the check's
definition in the engine. Masks that a client sends back are replaced by the stored credentials.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from penstock import engine
from penstock.errors import InvalidError, Problem, join_problems
from penstock.ids import MASK_TEXT, mask_secret
from penstock.secrets.config_credentials import SplitDocument, iter_strings, mask_if_secret, replace_strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.secrets.config_credentials import JsonPath

    JsonObject = dict[str, Any]

PARAMETERS = "parameters"
# Values of these types cannot name the destination of a credential.
PLAIN_TYPES = frozenset({"boolean", "integer", "number"})
MOVED_MESSAGE = (
    "must be sent again: other parameters of the check changed, and a stored credential is only sent where its owner "
    "chose to send it"
)
UNKNOWN_MASK_MESSAGE = (
    "is masked, and stands for no credential that this check had here; hint: send the credential itself"
)
AMBIGUOUS_MASK_MESSAGE = (
    "is masked, and several checks have a credential that looks like that; hint: send the credential itself"
)


class SecretKey(NamedTuple):
    """Key by which a mask is matched to a stored credential: the id of the check, the path in its parameters, and the
    mask.
    """

    check_id: str
    path: JsonPath
    mask: str


class StoredSecret(NamedTuple):
    """A stored credential: the position of its check, its text, and a digest of the parameters that it was stored with."""

    position: int
    text: str
    digest: bytes


@cache
def _catalogue() -> dict[str, JsonObject]:
    """Returns the description of each check, by its id and its aliases."""
    return {name: check for check in engine.guardrail_checks() for name in (check["id"], *check["aliases"])}


def split_credentials(checks: Sequence[JsonObject]) -> SplitDocument:
    """Separates the secrets of checks from them and masks them there."""
    secrets = {path: (text, mask) for path, text, mask in _iter_secrets(checks)}
    masks = {path: mask for path, (_, mask) in secrets.items()}
    return SplitDocument(replace_strings(list(checks), masks), {path: text for path, (text, _) in secrets.items()})


def secret_paths(body: object) -> list[JsonPath]:
    """Returns the paths of secrets in the body of a request, if it has checks. The body may be malformed."""
    checks = cast("JsonObject", body).get("checks") if isinstance(body, dict) else None
    json_paths: list[JsonPath] = []
    for index, check in enumerate(cast("list[object]", checks) if isinstance(checks, list) else []):
        if isinstance(check, dict) and isinstance(cast("JsonObject", check).get(PARAMETERS), dict):
            json_paths += [("checks", index, *path[1:]) for path, _, _ in _iter_secrets([cast("JsonObject", check)])]
    return json_paths


def restore_masks(
    sent: Sequence[JsonObject], before: SplitDocument, older: Iterable[SplitDocument] = ()
) -> list[JsonObject]:
    """Replaces masks with the stored credentials of the same check, also if checks were reordered. Unknown and ambiguous
    masks are rejected.
    """
    known = [_index_secrets(split) for split in (before, *older)]
    texts: dict[JsonPath, str] = {}
    problems: list[Problem] = []
    for position, check in enumerate(sent):
        digest = _binding_digest(check)
        for path, text in iter_strings(check[PARAMETERS]):
            if MASK_TEXT not in text:
                continue
            key = SecretKey(check["id"], path, text)
            location = (position, PARAMETERS, *path)
            # Searches older versions only if the current version has no credential with this key.
            candidates = next((by_key[key] for by_key in known if key in by_key), list[StoredSecret]())
            matching = [candidate for candidate in candidates if candidate.digest == digest]
            if chosen := _choose(matching, position):
                texts[location] = chosen
            elif candidates or _mask(check, path, text) is not None:
                reason = UNKNOWN_MASK_MESSAGE
                if candidates:
                    reason = AMBIGUOUS_MASK_MESSAGE if matching else MOVED_MESSAGE
                problems.append(Problem(_format_path(location), reason))
    if problems:
        raise InvalidError(join_problems(problems), problems)
    return cast("list[JsonObject]", replace_strings(list(sent), texts))


def has_unknown_masks(sent: Sequence[JsonObject], before: SplitDocument) -> bool:
    """Returns true if a mask matches no stored credential of `before`. Such a mask may come from an older version."""
    known = _index_secrets(before)
    return any(
        MASK_TEXT in text and SecretKey(check["id"], path, text) not in known
        for check in sent
        for path, text in iter_strings(check[PARAMETERS])
    )


def _iter_secrets(checks: Sequence[JsonObject]) -> Iterator[tuple[JsonPath, str, str]]:
    """Yields the path, the text and the mask of each secret."""
    for index, check in enumerate(checks):
        for path, text in iter_strings(check[PARAMETERS]):
            if (mask := _mask(check, path, text)) is not None:
                yield (index, PARAMETERS, *path), text, mask


def _mask(check: JsonObject, path: JsonPath, text: str) -> str | None:
    """Returns the mask of a string in the parameters of a check if it is secret, else `None`."""
    secret_names: list[str] = _catalogue().get(str(check.get("id")), {}).get("secrets", [])
    return mask_secret(text) if path[0] in secret_names else mask_if_secret(check[PARAMETERS], path, text)


def _index_secrets(split: SplitDocument) -> dict[SecretKey, list[StoredSecret]]:
    stored_secrets: dict[SecretKey, list[StoredSecret]] = {}
    for path, text in split.secrets.items():
        position, inner = cast("int", path[0]), path[2:]
        check: JsonObject = split.masked[position]
        mask: Any = check[PARAMETERS]
        for part in inner:
            mask = mask[part]
        stored = StoredSecret(position, text, _binding_digest(check))
        stored_secrets.setdefault(SecretKey(check["id"], inner, mask), []).append(stored)
    return stored_secrets


def _choose(matching: Sequence[StoredSecret], position: int) -> str | None:
    """Returns the common credential of all candidates. If they differ, returns the credential of the check at the same
    position, or `None`.
    """
    texts = {item.text for item in matching}
    if len(texts) == 1:
        return texts.pop()
    return next((item.text for item in matching if item.position == position), None)


def _binding_digest(check: JsonObject) -> bytes:
    """Returns a digest of the parameters that may decide where the check sends a credential. Unknown parameters are
    included.
    """
    properties: dict[str, JsonObject] = _catalogue().get(check["id"], {}).get(PARAMETERS, {}).get("properties", {})
    bound = {name: value for name, value in check[PARAMETERS].items() if not _is_plain(properties.get(name, {}))}
    return hashlib.sha256(msgspec.json.encode(bound, order="sorted")).digest()


def _is_plain(schema: JsonObject) -> bool:
    """Returns true if values of this JSON Schema cannot name a host: numbers, booleans, and words of a fixed list."""
    items: object = schema.get("items")
    is_fixed = "enum" in schema or (isinstance(items, dict) and "enum" in items)
    return is_fixed or schema.get("type") in PLAIN_TYPES


def _format_path(path: JsonPath) -> str:
    return "checks" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
