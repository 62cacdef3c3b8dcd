"""Ids, slugs and API keys: generation, validation and masking."""

from __future__ import annotations

import hashlib
import re
import secrets
from uuid import UUID

import uuid_utils

NON_SLUG_CHARS = re.compile(r"[^a-z0-9]+")
KEY_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
# 48 characters of an alphabet of 62 are 285 random bits. With the longest prefix, 190 random bits remain.
KEY_LENGTH = 48
# Replaces the hidden part of a secret.
MASK_TEXT = "*****"
# Provider names that older clients send, with the current names.
PROVIDER_ALIASES = {"hugging-face": "huggingface", "open-ai": "openai"}


def new_id() -> str:
    """Generates a UUID version 7, so that later ids sort after earlier ones."""
    return str(uuid_utils.uuid7())


# Matches only the end of the string, in Python and in JavaScript. In Python, `$` alone also matches before a final line
# feed.
END_OF_TEXT = r"$(?!\n)"
EMAIL_PATTERN = r"^[^@\s]+@[^@\s]+" + END_OF_TEXT
MAX_EMAIL_LENGTH = 320
URL_PATTERN = r"^https?://\S+" + END_OF_TEXT
HEADER_NAME_PATTERN = "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}" + END_OF_TEXT
# Field of an integration whose value a secret manager supplies.
TARGET_FIELD_PATTERN = r"^(key|configurations\.[a-z0-9_]+)" + END_OF_TEXT
DIGEST_PATTERN = "^[0-9a-f]{64}" + END_OF_TEXT
KEY_PREFIX_PATTERN = r"^[A-Za-z0-9]{0,16}\Z"
# An id or a slug that refers to another object.
ID_PATTERN = "^[a-zA-Z0-9_-]{1,255}" + END_OF_TEXT
# Slugs that users may choose. A slug that looks like a UUID could shadow the id of another row.
SLUG_PATTERN = "^(?![0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$)[a-zA-Z0-9_-]{1,255}" + END_OF_TEXT
# Names of labels. Words and numbers that select a version cannot be labels.
LABEL_NAME_PATTERN = r"^(?!latest$)(?!default$)(?!\d+$)(?!$)[a-zA-Z0-9_-]*[^@\s]?[a-zA-Z0-9_-]*" + END_OF_TEXT


def is_uuid(text: str) -> bool:
    """Returns true if the text is a UUID, which is an id and not a slug."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def slugify(name: str) -> str:
    """Turns a name into lower-case letters, digits and dashes."""
    return NON_SLUG_CHARS.sub("-", name.lower()).strip("-")


def slug_root(name: str, longest: int, otherwise: str) -> str:
    """Turns a name into a slug. `otherwise` replaces an empty slug, and precedes one that looks like a UUID."""
    root = slugify(name)[:longest] or otherwise
    return f"{otherwise}-{root}" if is_uuid(root) else root


def generate_slug(prefix: str, name: str, length: int) -> str:
    """Generates a slug with a random suffix: `pc-` and `my config` give `pc-my-con-1f2e3d`."""
    middle = slugify(name)[:length].strip("-")
    return "-".join(part for part in (prefix, middle, secrets.token_hex(3)) if part)


def generate_key(prefix: str = "") -> str:
    """Generates a gateway key. All keys have the same length including the prefix, because the engine detects keys in
    texts by their length.
    """
    return prefix + "".join(secrets.choice(KEY_ALPHABET) for _ in range(KEY_LENGTH - len(prefix)))


def sha256_hex(text: str) -> str:
    """Returns the SHA-256 digest of a secret. The store has only the digest, and finds the secret's row by it."""
    return hashlib.sha256(text.encode()).hexdigest()


def mask_secret(text: str) -> str:
    """Masks a secret except for its first two and last three characters. Short secrets are masked completely."""
    return f"{text[:2]}{MASK_TEXT}{text[-3:]}" if len(text) > 8 else MASK_TEXT  # noqa: PLR2004 - the ends of a shorter secret would reveal most of it
