"""Ids, slugs and keys: how things are named on the wire."""

from __future__ import annotations

import hashlib
import re
import secrets
from uuid import UUID

import uuid_utils

NON_SLUG_CHARS = re.compile(r"[^a-z0-9]+")
KEY_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
# 48 of 62 letters each: 285 bits, and 190 behind the longest prefix.
KEY_LENGTH = 48
# In the place of what nobody is shown.
MASK_TEXT = "*****"
# Providers, as older clients call them.
PROVIDER_ALIASES = {"hugging-face": "huggingface", "open-ai": "openai"}


def new_id() -> str:
    """Make a UUID of version 7: later ones sort after earlier ones."""
    return str(uuid_utils.uuid7())


# The end of a text, here and in JavaScript: `$` alone stands before a last line end too.
END_OF_TEXT = r"$(?!\n)"
EMAIL_PATTERN = r"^[^@\s]+@[^@\s]+" + END_OF_TEXT
MAX_EMAIL_LENGTH = 320
URL_PATTERN = r"^https?://\S+" + END_OF_TEXT
# What slugs may be that people choose: one that looks like an id would stand in the way of another's.
SLUG_PATTERN = "^(?![0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$)[a-zA-Z0-9_-]{1,255}" + END_OF_TEXT


def is_uuid(text: str) -> bool:
    """Whether this is an id rather than a slug."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def slugify(name: str) -> str:
    """Turn a name into letters, digits and dashes."""
    return NON_SLUG_CHARS.sub("-", name.lower()).strip("-")


def slug_root(name: str, longest: int, otherwise: str) -> str:
    """Turn a name into a slug that is neither empty nor looks like an id."""
    root = slugify(name)[:longest] or otherwise
    return f"{otherwise}-{root}" if is_uuid(root) else root


def generate_slug(prefix: str, name: str, length: int) -> str:
    """Make a slug that hardly anybody else has: `pc-` and `my config` give `pc-my-con-1f2e3d`."""
    middle = slugify(name)[:length].strip("-")
    return "-".join(part for part in (prefix, middle, secrets.token_hex(3)) if part)


def generate_key(prefix: str = "") -> str:
    """Make the text of a gateway key; with a prefix it is no longer, for the engine knows keys in texts by their length."""
    return prefix + "".join(secrets.choice(KEY_ALPHABET) for _ in range(KEY_LENGTH - len(prefix)))


def sha256_hex(text: str) -> str:
    """Give what a key is found by; its text is not kept."""
    return hashlib.sha256(text.encode()).hexdigest()


def mask_secret(text: str) -> str:
    """Show a secret's ends: two letters and three."""
    return f"{text[:2]}{MASK_TEXT}{text[-3:]}" if len(text) > 8 else MASK_TEXT  # noqa: PLR2004 - ends of less would be all of it
