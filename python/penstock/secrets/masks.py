"""Restores masked credentials of a config that a client sends back. A mask is replaced by the stored credential of the
same target.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from penstock.errors import InvalidError, Problem
from penstock.ids import MASK_TEXT
from penstock.secrets.config_credentials import (
    MAX_DEPTH,
    SplitDocument,
    iter_strings,
    mask_if_secret,
    replace_strings,
    target_depth,
)
from penstock.secrets.credential_binding import address_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.secrets.config_credentials import JsonPath

    # Returns a digest that identifies a target, or `None` if it has none.
    TargetDigest = Callable[[JsonPath], bytes | None]

MOVED_MESSAGE = (
    "must be sent again: its destination changed, and a stored credential is only sent where its owner chose to send it"
)
UNKNOWN_MASK_MESSAGE = (
    "is masked, and stands for no credential that this config had here for this provider; hint: send the credential"
)
AMBIGUOUS_MASK_MESSAGE = "is masked, and several credentials of this config look like that; hint: send the credential"


class MatchKey(NamedTuple):
    """Key by which masks are matched to stored credentials. A mask is never replaced by a credential with another key."""

    field_path: JsonPath
    mask: str
    # Digest of the options that decide the destination, for the targets that use the credential.
    destination_digest: bytes
    # Digest of the surrounding parameters, in which any string may be a URL.
    context_digest: bytes


def has_unknown_masks(sent: Any, before: SplitDocument) -> bool:  # noqa: ANN401 - JSON
    """Returns true if a mask matches no stored credential of `before`. Such a mask may come from an older version."""
    known_keys = _StoredCredentials(before).places
    return any(match_key not in known_keys for match_key in _group_masks(sent, _DocumentView(sent)))


def restore_masks(path: str, sent: Any, before: SplitDocument, older: Iterable[SplitDocument] = ()) -> Any:  # noqa: ANN401 - JSON
    """Replaces masks with the stored credentials. Targets may have been reordered; unknown and ambiguous masks are
    rejected.
    """
    view, current, earlier = (
        _DocumentView(sent),
        _StoredCredentials(before),
        [_StoredCredentials(item) for item in older],
    )
    masks = {match_key[:2] for stored in (current, *earlier) for match_key in stored.places}
    texts: dict[JsonPath, str] = {}
    problems: list[Problem] = []
    for match_key, paths in _group_masks(sent, view).items():
        # Searches older versions only if the current version has no credential with this key.
        knowing = [
            known for known in ([current] if match_key in current.places else earlier) if match_key in known.places
        ]
        agreed = _agreed_texts([known.match_masks(view, paths, match_key) for known in knowing])
        texts |= agreed
        # Only masks of known credentials and strings in secret fields must be restored. Others may contain real
        # asterisks.
        is_mask = match_key[:2] in masks
        missing = [
            item
            for item in paths
            if item not in agreed and (is_mask or mask_if_secret(sent, item, match_key.mask) is not None)
        ]
        problems += [
            Problem(path + _format_path(item), AMBIGUOUS_MASK_MESSAGE if knowing else UNKNOWN_MASK_MESSAGE)
            for item in missing
        ]
    if problems:
        summary = f"{problems[0].path} {problems[0].message}"
        raise InvalidError(summary, problems)
    return replace_strings(sent, texts)


class _DocumentView:
    """A document and digests of its targets, each of which is computed only once."""

    def __init__(self, document: Any) -> None:  # noqa: ANN401 - JSON
        self._document = document
        self.written = cache(self._compute_digest)
        self._destination_digest = cache(self._compute_destination)
        self._all_destinations_digest = cache(self._compute_all_destinations)

    def value_at(self, path: JsonPath) -> Any:  # noqa: ANN401 - JSON
        node = self._document
        for part in path:
            node = node[part]
        return node

    def match_key(self, path: JsonPath) -> MatchKey:
        target = path[: target_depth(path)]
        inner, text = path[len(target) :], self.value_at(path)
        if len(inner) == 1:
            return MatchKey(inner, text, self._destination_digest(target), b"")
        depth = self._parameter_depth(target, inner)
        names = tuple(part for part in inner[:depth] if isinstance(part, str)) + inner[depth:]
        return MatchKey(names, text, self._all_destinations_digest(target), self.written(target + inner[:depth]))

    def target_name_digest(self, target: JsonPath) -> bytes | None:
        name = self.value_at(target).get("name")
        return None if name is None else _json_digest(name)

    def _compute_digest(self, path: JsonPath) -> bytes:
        return _json_digest(self.value_at(path))

    def _parameter_depth(self, target: JsonPath, inner: JsonPath) -> int:
        """Returns the depth of the parameter that contains a path: a member of an object, or one row of a list."""
        for depth in (2, 3):
            node = self.value_at(target + inner[:depth])
            if isinstance(node, str):
                return depth - 1
            if isinstance(node, dict):
                return depth
        return 3

    def _compute_destination(self, target: JsonPath) -> bytes:
        above = self._destination_digest(target[:-2]) if target else b""
        address = address_fields(self.value_at(target))
        return hashlib.sha256(above + _json_digest(address)).digest() if address else above

    def _compute_all_destinations(self, target: JsonPath) -> bytes:
        """Returns a digest of the destinations of all nested targets, because these inherit the parameters of the
        target.
        """
        return hashlib.sha256(
            b"".join(sorted({self._destination_digest(end) for end in self._leaf_targets(target)}))
        ).digest()

    def _leaf_targets(self, target: JsonPath) -> Iterator[JsonPath]:
        below: object = self.value_at(target).get("targets")
        rows = cast("list[object]", below) if isinstance(below, list) and len(target) < MAX_DEPTH else []
        tables = [index for index, row in enumerate(rows) if isinstance(row, dict)]
        for index in tables:
            yield from self._leaf_targets((*target, "targets", index))
        if not tables:
            yield target


class _StoredCredentials:
    """The credentials of a document, grouped by match key."""

    def __init__(self, divided: SplitDocument) -> None:
        self._hidden = divided.secrets
        self._view = _DocumentView(divided.masked)
        self.places = _group_by_key(self._view, divided.secrets)

    def match_masks(
        self, sent: _DocumentView, masked_paths: list[JsonPath], match_key: MatchKey
    ) -> dict[JsonPath, str]:
        """Returns the stored credential of each mask that can be assigned. All masks and candidates have the same key."""
        stored_paths = self.places[match_key]
        if text := self._single_credential(stored_paths):
            return dict.fromkeys(masked_paths, text)
        # First assigns masks whose target is unchanged, then those whose target has the same name, then the remaining
        # ones.
        matches = self._match_by_digest(stored_paths, masked_paths, self._view.written, sent.written)
        remaining = [path for path in masked_paths if path not in matches]
        matches |= self._match_by_digest(
            stored_paths, remaining, self._view.target_name_digest, sent.target_name_digest
        )
        used = set(matches.values())
        text = self._single_credential([location for location in stored_paths if self._hidden[location] not in used])
        return {**dict.fromkeys(masked_paths, text), **matches} if text else matches

    def _match_by_digest(
        self, stored_paths: list[JsonPath], masked_paths: list[JsonPath], before: TargetDigest, now: TargetDigest
    ) -> dict[JsonPath, str]:
        rows: dict[bytes | None, set[JsonPath]] = {}
        for path in stored_paths:
            rows.setdefault(before(_target_path(path)), set()).add(path)
        texts = {digest: self._single_credential(paths) for digest, paths in rows.items() if digest is not None}
        digests = ((location, now(_target_path(location))) for location in masked_paths)
        is_exact = before == self._view.written
        restored = {
            location: self._hidden[location] if is_exact and location in rows[content] else texts[content]
            for location, content in digests
            if content in texts
        }
        return {location: text for location, text in restored.items() if text is not None}

    def _single_credential(self, paths: Iterable[JsonPath]) -> str | None:
        texts = {self._hidden[path] for path in paths}
        return texts.pop() if len(texts) == 1 else None


def _group_masks(sent: Any, view: _DocumentView) -> dict[MatchKey, list[JsonPath]]:  # noqa: ANN401 - JSON
    return _group_by_key(view, (path for path, text in iter_strings(sent) if MASK_TEXT in text))


def _group_by_key(view: _DocumentView, paths: Iterable[JsonPath]) -> dict[MatchKey, list[JsonPath]]:
    json_paths: dict[MatchKey, list[JsonPath]] = {}
    for path in paths:
        json_paths.setdefault(view.match_key(path), []).append(path)
    return json_paths


def _agreed_texts(responses: Sequence[dict[JsonPath, str]]) -> dict[JsonPath, str]:
    """Returns only the assignments in which all versions agree."""
    first, *others = responses or [{}]
    return {path: text for path, text in first.items() if all(other.get(path) == text for other in others)}


def _target_path(path: JsonPath) -> JsonPath:
    return path[: target_depth(path)]


def _json_digest(value: object) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).digest()


def _format_path(path: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
