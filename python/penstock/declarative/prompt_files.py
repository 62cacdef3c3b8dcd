"""Prompts as YAML files that people read and review: one file per prompt, named after its slug."""

from __future__ import annotations

import re
from io import StringIO
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.errors import Problem, SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.declarative.document import JsonObject

SUFFIX = ".yaml"
MAX_FILE_BYTES, MAX_FILES = 4 * 1024 * 1024, 10_000
SLUG_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
# Fields of a file, with the field of the API that has the same value.
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
# Fields with the template: a list of messages, or one text.
MESSAGES, TEXT = "messages", "text"


def to_document(prompt: JsonObject) -> JsonObject:
    """Returns the content of the file of a prompt. Fields without a value are left out."""
    document: JsonObject = {name: prompt[field] for name, field in API_FIELDS.items() if prompt.get(field)}
    template = prompt.get("string") or ""
    messages = None if prompt.get("is_raw_template") else _parse_messages(template)
    return {**document, **({TEXT: template} if messages is None else {MESSAGES: messages})}


def to_api_fields(document: JsonObject) -> JsonObject:
    """Returns the fields by which the API creates or updates the prompt of a file. A field that is not in the file is
    removed from the prompt.
    """
    fields: JsonObject = {field: document.get(name) for name, field in API_FIELDS.items()}
    fields["parameters"] = fields["parameters"] or {}
    fields["is_raw_template"] = bool(fields["is_raw_template"])
    is_text = TEXT in document
    fields["string"] = document[TEXT] if is_text else msgspec.json.encode(document[MESSAGES]).decode()
    return fields


def dump_document(document: JsonObject) -> str:
    """Returns a document as YAML. Texts of several lines are written as blocks."""
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


def read_folder(folder: Path) -> dict[str, JsonObject]:
    """Returns the documents of a folder by slug. Raises `SettingsError` with the problems of all files."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    except OSError as error:
        message = f"cannot read {str(folder)!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    if len(paths) > MAX_FILES:
        message = f"{str(folder)!r} has {len(paths)} files; at most {MAX_FILES} are allowed"
        raise SettingsError(message)
    documents: dict[str, JsonObject] = {}
    problems: list[Problem] = []
    for path in paths:
        found = _read_file(path, problems)
        if found is not None:
            documents[path.stem] = found
    if problems:
        message = "the files cannot be used:"
        raise SettingsError(message, problems)
    return documents


def _read_file(path: Path, problems: list[Problem]) -> JsonObject | None:
    from ruamel.yaml import YAML  # noqa: PLC0415 - as above
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415 - as above

    if not SLUG_PATTERN.fullmatch(path.stem):
        problems.append(Problem(path.name, "is not named after a slug; expected letters, digits, `-`, `_` and `.`"))
        return None
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            problems.append(Problem(path.name, f"is larger than {MAX_FILE_BYTES} bytes"))
            return None
        # ruamel.yaml does not declare all of its types.
        parser: Any = YAML(typ="safe", pure=True)
        content: object = parser.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(Problem(path.name, f"cannot be read: {error.strerror or error}"))
        return None
    except (YAMLError, UnicodeDecodeError, RecursionError) as error:
        problems.append(Problem(path.name, f"is not YAML: {str(error).splitlines()[0]}"))
        return None
    return _validate(path.name, content, problems)


def _validate(name: str, content: object, problems: list[Problem]) -> JsonObject | None:
    """Checks the shape of a file. The gateway checks the values."""
    if not isinstance(content, dict):
        problems.append(Problem(name, "must be a mapping with name and messages"))
        return None
    document = cast("JsonObject", content)
    before = len(problems)
    allowed = (*API_FIELDS, MESSAGES, TEXT)
    problems += [
        Problem(f"{name}: {key}", f"is not known; allowed: {', '.join(allowed)}")
        for key in document
        if key not in allowed
    ]
    if not isinstance(document.get("name"), str) or not document["name"]:
        problems.append(Problem(f"{name}: name", "is required, as a string"))
    if (MESSAGES in document) == (TEXT in document):
        problems.append(Problem(f"{name}: {MESSAGES}", f"is required, or {TEXT}; not both"))
    elif MESSAGES in document and not _is_message_list(document[MESSAGES]):
        problems.append(Problem(f"{name}: {MESSAGES}", "must be a list of mappings, each with a role"))
    elif TEXT in document and not isinstance(document[TEXT], str):
        problems.append(Problem(f"{name}: {TEXT}", "must be a string"))
    return document if len(problems) == before else None


def _parse_messages(template: str) -> list[JsonObject] | None:
    try:
        found: object = msgspec.json.decode(template)
    except msgspec.DecodeError:
        return None
    return cast("list[JsonObject]", found) if _is_message_list(found) else None


def _is_message_list(value: object) -> bool:
    if not isinstance(value, list):
        return False
    return all(isinstance(item, dict) and "role" in item for item in cast("list[object]", value))
