"""Writes the results of an import: the state document, which only its owner can read, and the report."""

from __future__ import annotations

import os
from collections import Counter
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock import engine
from penstock.declarative.plan import find_shape_problems
from penstock.errors import SettingsError
from penstock.imports.findings import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

JsonObject = dict[str, Any]

# First line of a written state document.
STATE_HEADER = "# Contains credentials. Read it, set the variables that it names, then run `penstock apply`.\n"
STATE_MODE, REPORT_MODE = 0o600, 0o644
MAX_YAML_KEYS = 2000
STATE_SOURCE = "state document"


class ImportedState(NamedTuple):
    """Result of an import."""

    state: JsonObject
    findings: list[Finding]


def check_state(imported: ImportedState) -> ImportedState:
    """Checks the document as `penstock apply` and the engine do. Omits configs that the engine would reject, with a
    finding for each of their errors.
    """
    if problems := list(find_shape_problems(imported.state)):
        message = "the import made a state document that cannot be applied:"
        raise SettingsError(message, problems)
    findings = list(imported.findings)
    for index, workspace in enumerate(imported.state["workspaces"]):
        good: list[JsonObject] = []
        for position, row in enumerate(workspace.get("configs", ())):
            errors = find_config_errors(row["config"])
            path = f"workspaces[{index}].configs[{position}].config"
            # The finding does not contain the engine's message, because that may repeat a value such as a credential.
            reason = "is not valid, so the config is left out; allowed values are in docs/config.schema.json"
            findings += [
                Finding(STATE_SOURCE, f"{path}{at.removeprefix('$')}", Status.UNSUPPORTED, reason) for at in errors
            ]
            good += [] if errors else [row]
        if "configs" in workspace:
            workspace["configs"] = good
    return ImportedState(imported.state, findings)


def find_config_errors(config: Mapping[str, Any]) -> list[str]:
    """Returns the JSON paths of all errors in a config."""
    try:
        engine.check("config", msgspec.json.encode(config))
    except engine.EngineError as error:
        return [problem["path"] for problem in error.problems]
    return []


def count_statuses(findings: Iterable[Finding]) -> dict[Status, int]:
    """Returns the number of values of each status."""
    counts = Counter[Status]()
    for finding in findings:
        counts[finding.status] += finding.count
    return {status: counts[status] for status in Status}


def reject_existing(files: Sequence[Path]) -> None:
    """Raises `SettingsError` if one of the files exists."""
    if existing := [str(file) for file in files if file.exists()]:
        message = f"{existing[0]!r} exists already; give another name, or --force to replace it"
        raise SettingsError(message)


def write_results(imported: ImportedState, out: Path, report: Path) -> None:
    """Writes the state document and the report. Replaces existing files."""
    _write(out, _dump_state(imported.state), STATE_MODE)
    document = {"summary": count_statuses(imported.findings), "findings": imported.findings}
    _write(report, msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n", REPORT_MODE)


def _dump_state(state: JsonObject) -> str:
    """Returns the document as YAML, or as JSON if it is large: YAML would take minutes to write and to read."""
    if sum(len(item.get("api_keys", ())) for item in state["workspaces"]) > MAX_YAML_KEYS:
        return msgspec.json.format(msgspec.json.encode(state), indent=1).decode() + "\n"
    return STATE_HEADER + dump_yaml(state)


def dump_yaml(content: object) -> str:
    """Returns a value as YAML."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - takes long to load, and other commands do not need it

    # ruamel.yaml does not declare all of its attributes, so the type is `Any`.
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    yaml.representer.ignore_aliases = _has_no_alias
    written = StringIO()
    yaml.dump(content, written)
    return written.getvalue()


def _has_no_alias(_value: object) -> bool:
    return True


def _write(file: Path, text: str, mode: int) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(opened, "w", encoding="utf-8") as stream:
            stream.write(text)
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        message = f"cannot write {str(file)!r}: {error.strerror}"
        raise SettingsError(message) from None
