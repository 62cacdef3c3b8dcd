"""Masks secrets in recorded bodies that are not one complete JSON object: streams, and bodies that were cut. The engine
masks complete objects.
"""

from __future__ import annotations

import re

import msgspec

from penstock.engine import mask_body_secrets

# Texts of which one is in each body with secrets. They are searched for first, because most bodies have none.
MARKS = (
    *(b"authorization", b"authentication", b'eaders"', b"server_url", b"serverUrl", b"api_key", b"apiKey"),
    *(b'_token"', b"secret"),
)
STREAM_START = re.compile(rb"\s*(?:data|event|id|retry)?:")
DATA_LINE = re.compile(rb"^(data:[ ]?)([^\r\n]+)", re.MULTILINE)
# Fields with secrets, and objects of which any field may be one. A cut value may have no closing quotation mark.
CUT_SECRET = re.compile(
    rb'("(?:[aA]uthorization|api_?[kK]ey|server_?[uU]rl|\w{0,64}_token|\w{0,64}secret)"\s*:\s*")(?:[^"\\]++|\\.)*+',
    re.DOTALL,
)
CUT_OBJECT = re.compile(rb'("(?:\w{0,64}[hH]eaders|authentication|client_secret)"\s*:\s*\{)[^{}]*')


def mask_secrets(body: bytes) -> bytes:
    """Returns a body with its secrets masked. Texts of conversations stay as they are."""
    masked = mask_body_secrets(body)
    is_stream = STREAM_START.match(body) is not None
    if masked is not None:
        # The engine masks only the complete events of a stream.
        if not is_stream:
            return masked
        body = masked
    if not _has_mark(body):
        return body
    if is_stream:
        return DATA_LINE.sub(lambda line: line[1] + _mask_document(line[2]) if _has_mark(line[2]) else line[0], body)
    return _mask_document(body)


def _has_mark(body: bytes) -> bool:
    return any(mark in body for mark in MARKS)


def _mask_document(document: bytes) -> bytes:
    """Masks JSON that may be cut. The engine finds no secrets in other complete JSON, so that stays as it is."""
    masked = mask_body_secrets(document)
    if masked is not None:
        return masked
    masked = CUT_OBJECT.sub(rb"\1", CUT_SECRET.sub(rb"\1***", document))
    return document if masked == document or _is_complete(document) else masked


def _is_complete(document: bytes) -> bool:
    try:
        msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
