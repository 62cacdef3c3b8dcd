"""Reads the settings from `penstock.toml`, the environment and command options, and reports all problems at once."""

from __future__ import annotations

import os
import tomllib
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin

import msgspec

from penstock.errors import Problem, SettingsError
from penstock.settings import jwt
from penstock.settings.secret import Secret
from penstock.settings.specs import ISSUERS_TABLE, SettingSpec, is_secret_type, iter_setting_specs
from penstock.settings.tree import Settings
from penstock.settings.validation import validate_settings
from penstock.similar_names import describe_unknown, find_misspelt
from penstock.type_validation import describe_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Tables of the same file that are not settings. They belong to the snapshot and may change while the gateway runs.
SNAPSHOT_TABLES = ("keys", "providers", "configs")
# Table with the prices of models, which also belongs to the snapshot.
PRICES_TABLE = "prices"
DEFAULT_SETTINGS_FILE = "penstock.toml"
OTEL_PREFIX = "OTEL_"
BOOLEAN_WORDS = {
    "on": True,
    "yes": True,
    "true": True,
    "1": True,
    "off": False,
    "no": False,
    "false": False,
    "0": False,
}


def find_settings_file(given_path: str | None, environ: Mapping[str, str]) -> str | None:
    """Returns the absolute path of the settings file: the given path, else `PENSTOCK_CONFIG`, else the default file if
    it exists.
    """
    path = (
        given_path
        or environ.get("PENSTOCK_CONFIG")
        or (DEFAULT_SETTINGS_FILE if os.path.exists(DEFAULT_SETTINGS_FILE) else None)
    )
    return os.path.abspath(path) if path else None


def read_toml_file(path: str) -> dict[str, Any]:
    """Parses a `penstock.toml`. Raises `SettingsError` if it cannot be read or is not valid TOML."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        message = f"cannot read {path!r}: {error.strerror or error}"
        raise SettingsError(message) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path!r} is not valid TOML: {error}"
        raise SettingsError(message) from None


def load_settings(
    file: str | None, environ: Mapping[str, str], options: Mapping[str, object] | None = None
) -> Settings:
    """Reads the settings. Command options override the environment, which overrides the file, which overrides the
    defaults.

    Raises `SettingsError` with all problems found.
    """
    document = read_toml_file(file) if file else {}
    problems = [*_find_unknown_keys(document), *_find_unknown_variables(environ, document)]
    values: dict[str, dict[str, object]] = {}
    for entry in iter_setting_specs():
        for source, value in _candidate_values(entry, document, environ, options or {}):
            try:
                values.setdefault(entry.section, {})[entry.key] = _convert_value(entry, value)
            except msgspec.ValidationError:
                is_secret = is_secret_type(entry.type)
                expected = "a string" if is_secret else describe_type(entry.type).removesuffix(" or null")
                problems.append(
                    Problem(source, f"{'the value' if is_secret else repr(value)} is not allowed: expected {expected}")
                )
            break
    sections = {name: _section_type(name)(**keys) for name, keys in values.items()}
    settings = Settings(file=file, issuers=jwt.parse_issuers(document.get(ISSUERS_TABLE, []), problems), **sections)
    problems += validate_settings(settings)
    if problems:
        message = "the settings cannot be used:"
        raise SettingsError(message, problems)
    return settings.with_data_dir()


def _section_type(name: str) -> Any:  # noqa: ANN401 - a struct that msgspec makes
    return next(field.type for field in msgspec.structs.fields(Settings) if field.name == name)


def _keys_by_section() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    for entry in iter_setting_specs():
        sections.setdefault(entry.section, []).append(entry.key)
    return sections


def _find_unknown_keys(document: dict[str, Any]) -> Iterator[Problem]:
    sections = _keys_by_section()
    for table, content in document.items():
        if table in {*SNAPSHOT_TABLES, PRICES_TABLE, ISSUERS_TABLE}:
            continue
        if table not in sections:
            known_tables = [*sections, *SNAPSHOT_TABLES, PRICES_TABLE, ISSUERS_TABLE]
            yield Problem(table, describe_unknown(table, known_tables))
        elif not isinstance(content, dict):
            yield Problem(table, f"must be a table: [{table}]")
        else:
            keys = cast("dict[str, object]", content)
            known_keys = sections[table]
            yield from (
                Problem(f"{table}.{key}", describe_unknown(key, known_keys)) for key in keys if key not in known_keys
            )


def _find_unknown_variables(environ: Mapping[str, str], document: dict[str, Any]) -> Iterator[Problem]:
    # A variable that the settings file names is not unknown: a `${…}` reference may use it.
    text = str(document)
    prefixes = {f"PENSTOCK_{section}_".upper(): section for section in _keys_by_section()}
    known_names = {entry.env for entry in iter_setting_specs()}
    for name in environ:
        section = next((section for prefix, section in prefixes.items() if name.startswith(prefix)), None)
        if name in known_names:
            continue
        if section:
            yield Problem(
                name, describe_unknown(name, [entry.env for entry in iter_setting_specs() if entry.section == section])
            )
        elif (
            name.startswith("PENSTOCK_") and f"${{{name}" not in text and (similar := find_misspelt(name, known_names))
        ):
            yield Problem(name, f"is not known; did you mean {similar}?")


def _candidate_values(
    entry: SettingSpec, document: dict[str, Any], environ: Mapping[str, str], options: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    if options.get(entry.path) is not None:
        yield f"--{entry.key.replace('_', '-')}", options[entry.path]
    # Proxy variables are also read in lower case, because other programs use these names.
    lower = (entry.env.lower(),) if entry.env.endswith("_PROXY") else ()
    for name in (*entry.other_envs, entry.env, *lower):
        # OpenTelemetry treats an empty variable as one that is not set.
        if name in environ and (environ[name] or not name.startswith(OTEL_PREFIX)):
            yield name, environ[name]
    table = document.get(entry.section)
    if isinstance(table, dict) and entry.key in table:
        yield entry.path, table[entry.key]


def decode_secret(_secret: type, value: object) -> Secret:
    """Msgspec decoding hook that wraps a string in a `Secret`."""
    if not isinstance(value, str):
        message = f"expected `str`, got `{type(value).__name__}`"
        raise TypeError(message)
    return Secret(value)


def _convert_value(entry: SettingSpec, settings: object) -> object:
    if is_secret_type(entry.type):
        text = settings.strip() if isinstance(settings, str) else settings
        return msgspec.convert(text or None, entry.type, dec_hook=decode_secret)
    if not isinstance(settings, str):
        return msgspec.convert(settings, entry.type)
    plain: Any = get_args(entry.type)[0]
    if get_origin(plain) is tuple:
        return msgspec.convert([part.strip() for part in settings.split(",") if part.strip()], entry.type)
    if plain in {bool, bool | None}:
        return msgspec.convert(BOOLEAN_WORDS.get(settings.strip().lower(), settings), entry.type)
    return msgspec.convert(settings.strip(), entry.type, strict=False)
