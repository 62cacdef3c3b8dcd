"""State file of the usage ledger: how far it has read the spool, and which usage the store does not have yet."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple
from uuid import uuid4

import msgspec

from penstock.logs.batch import Position

log = logging.getLogger("penstock")

# Files beside the counters of the data plane. It reads the second: what is known of the workers of all nodes.
STATE_FILE, MEMBERS_FILE = "usage-ledger.json", "members"


class CountedBudget(msgspec.Struct):
    """A budget that a request counts for, as its record lists it."""

    id: str
    group: str
    period_start: int
    type: str
    is_failed_attempt: bool = False


class CountedLimits(msgspec.Struct):
    """The field `limits` of a record."""

    budgets: list[CountedBudget] = []


class CountedRecord(msgspec.Struct):
    """The fields of a record or an amendment that budgets need. All others are skipped, which takes a sixth of the time."""

    limits: CountedLimits | None = None
    total_units: int | None = None
    cost_nanodollars: int | None = None
    # Set in an amendment that corrects the cost (`PREVIOUS_COST`).
    previous_cost_nanodollars: int | msgspec.UnsetType | None = msgspec.UNSET

    @classmethod
    def decode(cls, payload: bytes) -> CountedRecord:
        """Raises `msgspec.MsgspecError` if the payload is no record."""
        return _RECORD_DECODER.decode(payload)


_RECORD_DECODER = msgspec.json.Decoder(CountedRecord)


class UsageKey(msgspec.Struct, frozen=True):
    """A budget, one of its groups, and the start of its period in milliseconds since 1970."""

    limit_id: str
    group: str
    period_start: int
    # What the budget limits: `cost`, `tokens` or `requests`.
    measure: str


class UsageSum(msgspec.Struct):
    """Usage that the store does not have yet."""

    requests: int = 0
    tokens: int = 0
    nanodollars: int = 0
    # Corrections of costs that `nanodollars` includes.
    corrected: int = 0


class LedgerState(msgspec.Struct):
    """What one node has read, and which usage the store does not have yet."""

    node: str
    # Number of the next batch of sums. The store remembers the last one, so that none is added twice.
    sequence: int = 1
    positions: dict[str, Position] = {}
    batch: list[tuple[UsageKey, UsageSum]] = []
    """Sums that are stored under this number. They do not change until the store has them."""
    pending: list[tuple[UsageKey, UsageSum]] = []
    """Sums of later batches."""

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
        """Replaces the saved state at once."""
        _replace_file(folder, STATE_FILE, msgspec.json.encode(self))


class KnownMembers(NamedTuple):
    """What the data plane must know of the workers of all nodes."""

    workers: int
    # When this node last showed the store that it is alive; 0: the nodes share no store.
    seen_ms: int = 0
    # Start of the first windows in which the other nodes leave a share for this node.
    from_ms: int = 0

    def save(self, folder: str) -> None:
        """Replaces what the data plane knows."""
        _replace_file(folder, MEMBERS_FILE, b"%d %d %d" % self)


def _replace_file(folder: str, name: str, content: bytes) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    draft = os.path.join(folder, f"{name}.new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
    os.replace(draft, os.path.join(folder, name))


def read_ledger_positions(folder: str) -> dict[str, Position] | None:
    """Returns how far the ledger has read the spool, by writer; `None` if it never did."""
    try:
        with open(os.path.join(folder, STATE_FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=LedgerState).positions
    except (OSError, msgspec.MsgspecError):
        return None
