"""Sources of an import: YAML, JSON and TOML files as plain values with the line of each. The size of a file is
limited.
"""

from __future__ import annotations

import re
import tomllib
import warnings
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path as FilePath

Path = tuple[str | int, ...]

MAX_FILE_BYTES = 16 * 1024 * 1024
# Maximum number of values in a file. With YAML aliases of aliases, a small file can have more values than bytes.
MAX_VALUES = 500_000
MAX_DEPTH = 64
TOML_TABLE = re.compile(r"\s*\[(\[)?\s*(.+?)\s*\]\]?\s*(#.*)?$")
TOML_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
TOML_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


class Source(msgspec.Struct, frozen=True):
    """A parsed source: its name for the report, its values, and the lines of those that have one."""

    name: str
    tree: object
    lines: dict[Path, int] = {}
    # True for rows of a database.
    is_table: bool = False
    # Paths of rows with values that could not be decrypted.
    encrypted_rows: frozenset[Path] = frozenset()

    def find_line(self, path: Path) -> int | None:
        """Returns the line of a value. If it has none, returns the line of the closest enclosing value that has one."""
        return next((self.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.lines), None)


def read_text(file: FilePath) -> str:
    """Reads a file of limited size."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        message = f"cannot read {str(file)!r}: {error.strerror}"
        raise SettingsError(message) from None
    if len(content) > MAX_FILE_BYTES:
        message = f"{str(file)!r} is larger than {MAX_FILE_BYTES} bytes, which is the most that can be imported"
        raise SettingsError(message)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        message = f"{str(file)!r} is not UTF-8 text"
        raise SettingsError(message) from None


def parse_yaml(name: str, text: str) -> Source:
    """Parses YAML 1.1, which other gateways read. JSON is accepted, too."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - takes long to load, and other commands do not need it
    from ruamel.yaml.error import MantissaNoDotYAML1_1Warning, YAMLError  # noqa: PLC0415 - loads slowly

    # ruamel.yaml does not declare all of its attributes, so the type is `Any`.
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)
            tree = yaml.load(text)
        composer: Any = YAML(typ="safe", pure=True)
        composer.version = (1, 1)
        root = composer.compose(text)
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise SettingsError(f"{name} is not YAML: {_describe_yaml_error(error)}") from None
    lines: dict[Path, int] = {}
    if root is not None:
        _collect_yaml_lines(root, (), lines)
    return Source(name, _to_plain(name, tree), lines)


def parse_json(name: str, text: str) -> Source:
    """Parses JSON. The YAML parser finds the line numbers; a file that it cannot read has none."""
    try:
        tree = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise SettingsError(f"{name} is not JSON") from None
    try:
        lines = parse_yaml(name, text).lines
    except SettingsError:
        lines = {}
    return Source(name, _to_plain(name, tree), lines)


def parse_toml(name: str, text: str) -> Source:
    """Parses TOML."""
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The message of the parser names the position, and may repeat one character of the text.
        location = re.search(r"\(at (.*)\)$", str(error))
        raise SettingsError(f"{name} is not TOML: error at {location[1] if location else 'an unknown place'}") from None
    return Source(name, _to_plain(name, tree), dict(_iter_toml_lines(text)))


def _describe_yaml_error(error: Any) -> str:  # noqa: ANN401 - the error classes have different fields
    mark, problem = getattr(error, "problem_mark", None), str(getattr(error, "problem", "") or "it cannot be parsed")
    # The message on a duplicate key repeats both values, which may be credentials.
    problem = "a key is there twice" if problem.startswith("found duplicate key") else problem.splitlines()[0]
    return f"{problem} in line {mark.line + 1}" if mark else problem


def _collect_yaml_lines(node: Any, path: Path, lines: dict[Path, int]) -> None:  # noqa: ANN401 - untyped library
    if len(lines) > MAX_VALUES or len(path) > MAX_DEPTH:
        return
    lines[path] = node.start_mark.line + 1
    if node.id == "mapping":
        for key, value in node.value:
            if key.id == "scalar" and not key.tag.endswith(":merge"):
                at = (*path, str(key.value))
                _collect_yaml_lines(value, at, lines)
                lines[at] = key.start_mark.line + 1
    elif node.id == "sequence":
        for index, item in enumerate(node.value):
            _collect_yaml_lines(item, (*path, index), lines)


def _iter_toml_lines(text: str) -> Iterator[tuple[Path, int]]:
    """Yields the path and the line number of each table and key. Omits keys inside of values that span several
    lines.
    """
    table: Path = ()
    counts: dict[Path, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if matched := TOML_TABLE.match(line):
            table = _split_toml_key(matched[2])
            if matched[1]:
                index = counts.get(table, 0)
                counts[table] = index + 1
                table = (*table, index)
            yield table, number
        elif matched := TOML_KEY.match(line):
            yield (*table, *_split_toml_key(matched[1])), number


def _split_toml_key(text: str) -> Path:
    return tuple(part.strip("\"'") for part in TOML_KEY_PART.findall(text))


def _to_plain(name: str, tree: object) -> object:
    """Returns plain values with string keys. Rejects sources that are too deep or too large."""
    count = 0

    def convert(value: object, depth: int) -> object:
        nonlocal count
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            limit = f"{MAX_VALUES} values" if count > MAX_VALUES else f"{MAX_DEPTH} levels"
            raise SettingsError(f"{name} has more than {limit}, which is the most that can be imported")
        if isinstance(value, dict):
            items = cast("dict[object, object]", value).items()
            return _name_keys(name, [(key, convert(item, depth + 1)) for key, item in items])
        if isinstance(value, list | tuple | set):
            return [convert(item, depth + 1) for item in cast("list[object]", value)]
        if value is None or isinstance(value, str | bool | int | float):
            return value
        return str(value)

    return convert(tree, 0)


def _name_keys(name: str, items: Iterable[tuple[object, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in items:
        text = key if isinstance(key, str) else str(key).lower() if isinstance(key, bool) else str(key)
        if text in values:
            message = f"{name} has a key twice in one mapping: as a string, and as another type"
            raise SettingsError(message)
        values[text] = value
    return values
