"""Validation of S3 bucket settings, which two settings sections have: the URL, the endpoint and the credentials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from penstock.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.settings.secret import Secret

FOLDER = "folder"
BUCKET_NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,255}")


class BucketSection(Protocol):
    """Settings of a bucket and its credentials."""

    @property
    def s3_endpoint_url(self) -> str:
        """URL of the service; empty for Amazon S3."""
        ...

    @property
    def s3_region(self) -> str:
        """Region of the bucket."""
        ...

    @property
    def s3_access_key_id(self) -> str:
        """Access key of the bucket."""
        ...

    @property
    def s3_secret_access_key(self) -> Secret | None:
        """Secret of the access key."""
        ...


def validate_bucket(name: str, key: str, store: str, section: BucketSection) -> Iterator[Problem]:
    """Yields the validation errors of the bucket settings in the section `name`. Its setting `key` has the value
    `store`, which is a folder or a bucket.
    """
    if store != FOLDER and not _is_bucket_url(store):
        reason = f"{_show_value(store)} is not allowed: expected `folder`, `s3://bucket` or `s3://bucket/prefix`"
        yield Problem(f"{name}.{key}", reason)
    if section.s3_endpoint_url and not _is_http_url(section.s3_endpoint_url):
        display = _show_value(section.s3_endpoint_url)
        reason = f"{display} is not allowed: expected a URL with http:// or https://, without credentials"
        yield Problem(f"{name}.s3_endpoint_url", reason)
    if bool(section.s3_access_key_id) != bool(section.s3_secret_access_key):
        reason = f"is not allowed without {name}.s3_secret_access_key, nor that without it: set both or none"
        yield Problem(f"{name}.s3_access_key_id", reason)


def _show_value(text: str) -> str:
    # Hides a URL that may contain a password.
    return "the value" if "@" in text else repr(text)


def _is_bucket_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    is_plain = not parts.query and not parts.fragment
    return parts.scheme == "s3" and is_plain and BUCKET_NAME_PATTERN.fullmatch(parts.netloc) is not None


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_plain = "@" not in parts.netloc
        return parts.scheme in {"http", "https"} and is_plain and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
