"""IDs, slugs, keys and masks."""

from __future__ import annotations

import re

from penstock.ids import generate_key, generate_slug, is_uuid, mask_secret, new_id, sha256_hex, slugify


def test_ids_are_uuid_version_7_in_creation_order():
    created = [new_id() for _ in range(1000)]
    assert created == sorted(set(created))
    assert all(is_uuid(text) and text[14] == "7" for text in created)
    assert not is_uuid("pc-config-1a2b3c")


def test_slug_has_prefix_name_and_random_suffix():
    assert re.fullmatch(r"pc-my-con-[0-9a-f]{6}", generate_slug("pc", "My config!", 6))
    assert re.fullmatch(r"ws-[0-9a-f]{6}", generate_slug("ws", "🚀", 10))
    assert re.fullmatch(r"name-[0-9a-f]{6}", generate_slug("", "name", 10))
    assert slugify("  A -- B_c ") == "a-b-c"


def test_keys_are_unique_and_hashed_with_sha256():
    first, second = generate_key(), generate_key()
    assert first != second
    assert re.fullmatch(r"[A-Za-z0-9]{48}", first)
    assert sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_mask_shows_both_ends_of_long_secrets_only():
    assert mask_secret("pa1234567890X7a") == "pa*****X7a"
    assert mask_secret("12345678") == "*****"
    assert mask_secret("") == "*****"


def test_prefixed_key_is_alphanumeric_with_the_usual_length():
    """The engine relies on this to find keys in texts that it sends to others."""
    text = generate_key("acme")
    assert (text.startswith("acme"), len(text), text.isalnum()) == (True, 48, True)
