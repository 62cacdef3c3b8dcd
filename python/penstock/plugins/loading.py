"""Loads plug-ins from the operator's files, and describes their checks."""

from __future__ import annotations

import importlib.util
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.plugins import Check, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,63}")


def load_checks(paths: Iterable[str]) -> dict[str, Check]:
    """Returns the checks of all plug-ins by id. Raises `PluginError` with the name of a file that cannot be used."""
    checks: dict[str, Check] = {}
    for path in _iter_files(paths):
        names: dict[str, Any] = vars(_load_module(path))
        for name, value in names.items():
            if not isinstance(value, Check):
                continue
            id_ = f"{path.stem}.{name}"
            if not NAME_PATTERN.fullmatch(name):
                message = f"{path}: {name!r} is no name of a check: lower-case letters, digits and `_` are allowed"
                raise PluginError(message)
            if id_ in checks:
                message = f"{path}: two plug-ins have the check {id_}; rename one of the files"
                raise PluginError(message)
            checks[id_] = value
    return checks


def describe_check(id_: str, check: Check) -> dict[str, Any]:
    """Returns the description of a check for the engine's catalogue of checks."""
    try:
        (schema,), components = msgspec.json.schema_components([check.parameters])
    except TypeError as error:
        message = f"{id_}: its parameters cannot be described: {error}"
        raise PluginError(message) from None
    # The schema of the parameters is itself a component. Nested types remain in `$defs`.
    struct_name = schema["$ref"].rsplit("/", 1)[-1]
    parameters: dict[str, Any] = components.pop(struct_name)
    if components:
        parameters["$defs"] = components
    parameters.pop("title", None)
    parameters.pop("description", None)
    words = id_.split(".", 1)[1].replace("_", " ")
    return {
        "id": id_,
        "name": words[0].upper() + words[1:],
        "description": check.description,
        "stages": check.stages,
        "parameters": parameters,
        "changes": check.changes,
    }


def _iter_files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        _check_mode(path)
        if not path.is_dir():
            yield path
            continue
        # Files whose names begin with `_` are no plug-ins, but modules that plug-ins import.
        for file in sorted(path.glob("*.py")):
            if not file.name.startswith("_"):
                _check_mode(file)
                yield file


def _check_mode(path: Path) -> None:
    """Raises an error for a file that every user of the machine may write, and so replace by other code."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        message = f"{path}: {error.strerror or error}"
        raise PluginError(message) from None
    if mode & stat.S_IWOTH:
        message = f"{path}: every user can write to it; hint: chmod o-w {path}"
        raise PluginError(message)


def _load_module(path: Path) -> ModuleType:
    if not NAME_PATTERN.fullmatch(path.stem):
        message = f"{path}: rename the file: lower-case letters, digits and `_` are allowed, with a letter first"
        raise PluginError(message)
    if (folder := str(path.parent.resolve())) not in sys.path:
        sys.path.append(folder)
    name = f"penstock_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        message = f"{path}: is no Python file"
        raise PluginError(message)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except PluginError as error:
        message = f"{path}: {error}"
        raise PluginError(message) from None
    except Exception as error:  # noqa: BLE001 - code of the operator may raise anything
        message = f"{path}: {type(error).__name__}: {error}"
        raise PluginError(message) from None
    return module
