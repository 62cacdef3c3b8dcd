"""Reference of all settings as a Markdown table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from penstock.settings import is_secret_type, iter_setting_specs
from penstock.settings.secret import Secret

if TYPE_CHECKING:
    from penstock.settings import SettingSpec


def render_markdown() -> str:
    """Renders the reference of all settings."""
    rows = [
        "| key in `penstock.toml` | environment | type | default | description |",
        "|---|---|---|---|---|",
        *(
            f"| `{entry.path}` | {_env_names(entry)} | {_type_name(entry.type)} | {_default_name(entry)} | {entry.description} |"
            for entry in iter_setting_specs()
        ),
    ]
    return "\n".join(rows)


def _env_names(entry: SettingSpec) -> str:
    return ", ".join(f"`{name}`" for name in (entry.env, *entry.other_envs))


def _type_name(annotated: Any) -> str:  # noqa: ANN401 - a type
    plain: Any = get_args(annotated)[0]
    if get_origin(plain) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(plain))
    if is_secret_type(annotated):
        return "secret"
    names: dict[Any, str] = {bool: "boolean", bool | None: "boolean", int: "integer", float: "number", str: "string"}
    names[Secret | None] = "string"
    return names.get(plain, "list")


def _default_name(entry: SettingSpec) -> str:
    if entry.key == "workers" or entry.default in (None, "", ()):
        return "none" if entry.default == () else ""
    if isinstance(entry.default, bool):
        return f"`{str(entry.default).lower()}`"
    default: Any = entry.default
    return (
        f"`{default}`"
        if not isinstance(default, tuple)
        else ", ".join(f"`{item}`" for item in cast("tuple[str, ...]", default))
    )
