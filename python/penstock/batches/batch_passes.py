"""Passes of batches that a provider runs. With a pass, the edge sends a batch to its provider although guardrails apply
to it, because the lines were checked before. Only the control process of a node issues passes.
"""

from __future__ import annotations

import secrets

PASS_HEADER = "x-gateway-batch-pass"  # noqa: S105 - the name of a header
NAME_BYTES = 24

# Bounded by `batches.max_running`: each running batch has at most one pass.
_passes: set[str] = set()


def issue_pass() -> str:
    """Returns the name of a new pass, which is valid until it is revoked."""
    name = secrets.token_hex(NAME_BYTES)
    _passes.add(name)
    return name


def revoke_pass(name: str) -> None:
    """Makes a pass invalid."""
    _passes.discard(name)


def is_valid_pass(name: str) -> bool:
    """True if the pass was issued and is not revoked."""
    return name in _passes
