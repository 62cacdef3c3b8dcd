"""State file of the usage ledger: the positions up to which it has read the spool, and usage that is not in the store
yet.
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple
from uuid import uuid4

import msgspec

from penstock.logs.batch import Position

log = logging.getLogger("penstock")

# Files in the folder with the counters of the data plane. The usage ledger reads `STATE_FILE`. The data plane reads
# `MEMBERS_FILE`, which has `KnownMembers`.
STATE_FILE, MEMBERS_FILE = "usage-ledger.json", "members"


# Maximum of a sum, and minimum below 0. The store has 64-bit integers, which can contain the sum of two such amounts.
MAX_AMOUNT = 2**62 - 1


def clamp_amount(amount: int) -> int:
    """Limits an amount to `MAX_AMOUNT`. A provider may report any number of tokens."""
    return max(-MAX_AMOUNT, min(amount, MAX_AMOUNT))


class UsageKey(msgspec.Struct, frozen=True):
    """A budget, one of its groups, and the start of its period in milliseconds since 1970."""

    limit_id: str
    group: str
    period_start: int
    # What the budget limits: `cost`, `tokens` or `requests`.
    measure: str


class UsageSum(msgspec.Struct):
    """Usage of one `UsageKey` that is not in the store yet."""

    requests: int = 0
    tokens: int = 0
    nanodollars: int = 0
    # Part of `nanodollars` that comes from corrections of costs.
    corrected: int = 0

    def add(self, other: UsageSum) -> None:
        """Adds further usage."""
        self.requests = clamp_amount(self.requests + other.requests)
        self.tokens = clamp_amount(self.tokens + other.tokens)
        self.nanodollars = clamp_amount(self.nanodollars + other.nanodollars)
        self.corrected = clamp_amount(self.corrected + other.corrected)


class LedgerState(msgspec.Struct):
    """State of one node's ledger: what it has read from the spool, and usage that is not in the store yet."""

    node: str
    # Number of the next batch of sums. The store has the number of the last batch, so that none is added twice.
    sequence: int = 1
    positions: dict[str, Position] = {}
    batch: list[tuple[UsageKey, UsageSum]] = []
    """Sums of the batch with the number `sequence`. They do not change until they are in the store."""
    pending: list[tuple[UsageKey, UsageSum]] = []
    """Sums that are not in a batch yet."""

    @classmethod
    def load(cls, folder: str) -> LedgerState:
        """Returns the saved state; a new one if there is none."""
        try:
            with open(os.path.join(folder, STATE_FILE), "rb") as file:
                return msgspec.json.decode(file.read(), type=cls)
        except FileNotFoundError:
            return cls(str(uuid4()))
        except msgspec.MsgspecError as error:
            log.warning("%s cannot be read, so usage of budgets may be counted twice: %s", STATE_FILE, error)
            return cls(str(uuid4()))

    def save(self, folder: str) -> None:
        """Replaces the saved state atomically."""
        _replace_file(folder, STATE_FILE, msgspec.json.encode(self))


class KnownMembers(NamedTuple):
    """Information about the workers of all nodes, by which the data plane divides limits among them while Redis is
    unavailable.
    """

    workers: int
    # Unix time in milliseconds at which this node last reported to the store that it is alive. 0 if the nodes share no
    # store.
    seen_ms: int = 0
    # Start of the first windows in which the other nodes leave a share for this node, as Unix time in milliseconds.
    from_ms: int = 0

    def save(self, folder: str) -> None:
        """Replaces the file that the data plane reads."""
        _replace_file(folder, MEMBERS_FILE, b"%d %d %d" % self)


def _replace_file(folder: str, name: str, content: bytes) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    draft = os.path.join(folder, f"{name}.new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
    os.replace(draft, os.path.join(folder, name))


def read_ledger_positions(folder: str) -> dict[str, Position] | None:
    """Returns the position up to which the ledger has read each writer's spool. Returns `None` if it has never run."""
    try:
        with open(os.path.join(folder, STATE_FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=LedgerState).positions
    except (OSError, msgspec.MsgspecError):
        return None
