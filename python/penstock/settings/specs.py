"""Descriptions of all settings, which the loader and the reference page use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec

from penstock.settings.secret import Secret
from penstock.settings.tree import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Meta

ISSUERS_TABLE = "issuers"


class SettingSpec(msgspec.Struct, frozen=True):
    """Description of one setting. The loader and the reference page use it."""

    section: str
    key: str
    env: str
    type: Any
    default: object
    description: str
    # Further environment variables for the setting. They precede `env`, because they are more specific.
    other_envs: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Path of the setting in `penstock.toml`."""
        return f"{self.section}.{self.key}"


def iter_setting_specs() -> Iterator[SettingSpec]:
    """Yields every setting."""
    for section in msgspec.structs.fields(Settings):
        if section.name in {"file", ISSUERS_TABLE}:
            continue
        for field in msgspec.structs.fields(section.type):
            meta: Meta = get_args(field.type)[1]
            extra = meta.extra or {}
            env = extra.get("env") or f"PENSTOCK_{section.name}_{field.name}".upper()
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            words, others = meta.description or "", extra.get("other_envs", ())
            yield SettingSpec(section.name, field.name, env, field.type, default, words, others)


def is_secret_type(annotated: Any) -> bool:  # noqa: ANN401 - a type
    return Secret in get_args(get_args(annotated)[0])
