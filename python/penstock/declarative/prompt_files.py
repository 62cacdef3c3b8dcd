"""Prompts and partials as YAML files that people read and review: one file each, named after its slug. Partials are in
a folder of their own, because a prompt may have the same slug.
"""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from penstock.errors import Problem, SettingsError
from penstock.kit.json_depth import nests_deeper

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.declarative.document import JsonObject

SUFFIX = ".yaml"
SHORT_SUFFIX = ".yml"
# Maximum nesting depth of a file. The gateway allows fewer levels in each field.
MAX_FILE_DEPTH = 64
MAX_FILE_BYTES, MAX_FILES = 4 * 1024 * 1024, 10_000
SLUG_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
# Field of the API for each field of a file.
API_FIELDS = {
    "name": "name",
    "provider": "virtual_key",
    "model": "model",
    "parameters": "parameters",
    "tools": "tools",
    "tool_choice": "tool_choice",
    "functions": "functions",
    "is_raw_template": "is_raw_template",
}
# Fields with the template: `messages` is a list of messages, and `text` a single text.
MESSAGES, TEXT = "messages", "text"
# Field with the names of the version's labels. For a file without it, a push does not change labels.
LABELS = "labels"
FIELD_ORDER = (*API_FIELDS, LABELS, TEXT, MESSAGES)
PARTIALS_FOLDER = "partials"
PARTIAL_FIELDS = ("name", TEXT)
PARTIAL_TAG = re.compile(r"\{\{>\s*([^\s{}]+)\s*\}\}")


def to_document(prompt: JsonObject) -> JsonObject:
    """Converts a prompt of the API to the content of its file. Omits fields without a value."""
    document: JsonObject = {name: prompt[field] for name, field in API_FIELDS.items() if prompt.get(field)}
    template = prompt.get("string") or ""
    messages = None if prompt.get("is_raw_template") else _parse_messages(template)
    labels = sorted(label["name"] for label in prompt.get("prompt_version_labels") or ())
    if labels:
        document[LABELS] = labels
    return {**document, **({TEXT: template} if messages is None else {MESSAGES: messages})}


def to_partial_document(partial: JsonObject) -> JsonObject:
    """Converts a partial of the API to the content of its file."""
    return {"name": partial["name"], TEXT: partial["string"]}


def align_labels(document: JsonObject, stored: JsonObject) -> tuple[JsonObject, JsonObject]:
    """Returns both documents in a form that can be compared: the same order of fields, without empty fields. Labels are
    omitted if the file has no field `labels`.
    """
    fields = [name for name in FIELD_ORDER if name != LABELS or LABELS in document]
    with_labels = {**document, LABELS: sorted(set(document.get(LABELS) or ()))}
    first, second = (
        {name: fields_of[name] for name in fields if fields_of.get(name)} for fields_of in (with_labels, stored)
    )
    return first, second


def order_partials(texts: Mapping[str, str]) -> list[str]:
    """Returns the slugs of partials in an order for creation: each one follows the partials that its text includes."""
    ordered: dict[str, None] = {}
    entered: set[str] = set()
    pending = sorted(texts, reverse=True)
    while pending:
        slug = pending[-1]
        if slug in ordered or slug not in texts:
            pending.pop()
        elif slug in entered:
            ordered[slug] = None
            pending.pop()
        else:
            entered.add(slug)
            pending += [inner for inner in PARTIAL_TAG.findall(texts[slug]) if inner not in entered]
    return list(ordered)


def to_api_fields(document: JsonObject) -> JsonObject:
    """Returns the fields by which the API creates or updates the prompt of a file. A field that is not in the file is
    removed from the prompt.
    """
    fields: JsonObject = {field: document.get(name) for name, field in API_FIELDS.items()}
    fields["parameters"] = fields["parameters"] or {}
    fields["is_raw_template"] = bool(fields["is_raw_template"])
    messages = document.get(MESSAGES)
    fields["string"] = msgspec.json.encode(messages).decode() if messages else document.get(TEXT, "")
    return fields


def dump_document(document: JsonObject) -> str:
    """Returns a document as YAML. Strings with several lines are written as YAML blocks."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - most commands need no YAML

    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    yaml.width = 4096

    def represent_text(representer: Any, text: str) -> Any:  # noqa: ANN401 - the types are not published
        style = "|" if "\n" in text else None
        return representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    yaml.representer.add_representer(str, represent_text)
    written = StringIO()
    yaml.dump(document, written)
    return written.getvalue()


class PromptFolder(NamedTuple):
    """Documents of a folder by slug. Partials are in the order in which they can be created."""

    prompts: dict[str, JsonObject]
    partials: dict[str, JsonObject]
    # Files that cannot be compared or saved; the others can.
    unusable: tuple[Problem, ...] = ()


def read_folder(folder: Path) -> PromptFolder:
    """Reads the files of a folder. Raises `SettingsError` with the problems of all files."""
    problems: list[Problem] = []
    unusable: list[Problem] = []
    prompts = _read_files(folder, "", problems, unusable)
    inner = folder / PARTIALS_FOLDER
    partials = _read_files(inner, f"{PARTIALS_FOLDER}/", problems, unusable) if inner.is_dir() else {}
    if problems:
        message = "the files cannot be used:"
        raise SettingsError(message, problems)
    partials = {
        slug: partials[slug] for slug in order_partials({slug: partial[TEXT] for slug, partial in partials.items()})
    }
    return PromptFolder(prompts, partials, tuple(unusable))


def _read_files(folder: Path, prefix: str, problems: list[Problem], unusable: list[Problem]) -> dict[str, JsonObject]:
    """Returns the documents of the files in a folder. `prefix`, such as `partials/`, precedes the names of files
    in problems.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        message = f"cannot read {str(folder)!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    problems += [
        Problem(prefix + path.name, f"must end in {SUFFIX}") for path in entries if path.suffix == SHORT_SUFFIX
    ]
    paths = [path for path in entries if path.suffix == SUFFIX]
    if len(paths) > MAX_FILES:
        message = f"{str(folder)!r} has {len(paths)} files; at most {MAX_FILES} are allowed"
        raise SettingsError(message)
    read = {path.stem: _read_file(path, prefix, problems, unusable) for path in paths}
    return {slug: document for slug, document in read.items() if document is not None}


def _read_file(path: Path, document_path: str, problems: list[Problem], unusable: list[Problem]) -> JsonObject | None:
    from ruamel.yaml import YAML  # noqa: PLC0415 - loads slowly
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415 - loads slowly

    name = document_path + path.name
    if not SLUG_PATTERN.fullmatch(path.stem):
        problems.append(Problem(name, "is not named after a slug; expected letters, digits, `-`, `_` and `.`"))
        return None
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            problems.append(Problem(name, f"is larger than {MAX_FILE_BYTES} bytes"))
            return None
        # The type is `Any`, because ruamel.yaml does not declare all of its types.
        parser: Any = YAML(typ="safe", pure=True)
        content: object = parser.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(Problem(name, f"cannot be read: {error.strerror or error}"))
        return None
    except (YAMLError, UnicodeDecodeError) as error:
        problems.append(Problem(name, f"is not YAML: {str(error).splitlines()[0]}"))
        return None
    except RecursionError:
        content = None
    if content is None or nests_deeper(content, MAX_FILE_DEPTH):
        unusable.append(
            Problem(name, f"nests too deep; at most {MAX_FILE_DEPTH} levels of mappings and lists are allowed")
        )
        return None
    return _validate(name, content, problems, is_partial=bool(document_path))


def _validate(name: str, content: object, problems: list[Problem], *, is_partial: bool) -> JsonObject | None:
    """Returns the document if the content of a file has the right shape; appends problems otherwise. The gateway checks
    the values.
    """
    if not isinstance(content, dict):
        problems.append(Problem(name, f"must be a mapping with name and {TEXT if is_partial else MESSAGES}"))
        return None
    document = cast("JsonObject", content)
    before = len(problems)
    allowed = PARTIAL_FIELDS if is_partial else (*API_FIELDS, LABELS, MESSAGES, TEXT)
    problems += [
        Problem(f"{name}: {key}", f"is not known; allowed: {', '.join(allowed)}")
        for key in document
        if key not in allowed
    ]
    if not isinstance(document.get("name"), str) or not document["name"]:
        problems.append(Problem(f"{name}: name", "is required, as a string"))
    if is_partial:
        if not isinstance(document.get(TEXT), str):
            problems.append(Problem(f"{name}: {TEXT}", "is required, as a string"))
        return document if len(problems) == before else None
    labels: object = document.get(LABELS, [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in cast("list[object]", labels)):
        problems.append(Problem(f"{name}: {LABELS}", "must be a list of names of labels"))
    if (MESSAGES in document) == (TEXT in document):
        problems.append(Problem(f"{name}: {MESSAGES}", f"is required, or {TEXT}; not both"))
    elif MESSAGES in document and not _is_message_list(document[MESSAGES]):
        problems.append(Problem(f"{name}: {MESSAGES}", "must be a list of mappings, each with a role"))
    elif TEXT in document and not isinstance(document[TEXT], str):
        problems.append(Problem(f"{name}: {TEXT}", "must be a string"))
    return document if len(problems) == before else None


def _parse_messages(template: str) -> list[JsonObject] | None:
    try:
        messages: object = msgspec.json.decode(template)
    except msgspec.DecodeError:
        return None
    return cast("list[JsonObject]", messages) if _is_message_list(messages) else None


def _is_message_list(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, dict) and "role" in item for item in cast("list[object]", value))
