"""Interface for the SQL fragments in which the engines differ, and a statement with bound values."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.logs.query import LogFilters

Row = tuple[Any, ...]
MICROSECONDS_PER_MS = 1000


class ValueType(enum.Enum):
    """Type of a bound value."""

    STRING = "string"
    INTEGER = "integer"
    FLOAT = "float"
    TIMESTAMP = "timestamp"
    UUID = "uuid"


class SqlFragments(Protocol):
    """SQL fragments of one engine. An object serves one query."""

    @property
    def ticks_per_ms(self) -> int:
        """Number of `ticks` in a millisecond."""
        ...

    def ticks(self, expression: str) -> str:
        """Converts a timestamp to an integer, in the unit that is cheapest to compute."""
        ...

    def placeholder(self, name: str, value_type: ValueType) -> str:
        """Returns the placeholder of a bound value."""
        ...

    def milliseconds(self, expression: str) -> str:
        """Converts a timestamp to milliseconds since the epoch."""
        ...

    def divide(self, expression: str, divisor: int) -> str:
        """Divides integers, rounding down."""
        ...

    def quantiles(self, expression: str, levels: Sequence[float]) -> str:
        """Aggregates exact quantiles with linear interpolation, as a list."""
        ...

    def map_value(self, column: str, key: str) -> str:
        """Returns the value of a key of a map, or NULL."""
        ...

    def id_text(self, expression: str) -> str:
        """Converts a UUID to text, which both engines sort in the same way."""
        ...

    def json_items(self, column: str, paths: Sequence[Sequence[str]]) -> str:
        """Returns one row for each item of the lists at these paths in a column of JSON. A path is a sequence of field
        names, and each field contains a list.
        """
        ...

    def json_text(self, item: str, field: str) -> str:
        """Returns a string field of such an item."""
        ...

    def json_number(self, item: str, field: str) -> str:
        """Returns a number field of such an item, or NULL."""
        ...

    def json_has_id(self, column: str, paths: Sequence[Sequence[str]], values: Sequence[str]) -> str:
        """Returns a condition: an item of the lists at these paths has one of these expressions as its `id`."""
        ...

    def json_is_true(self, item: str, field: str) -> str:
        """Returns a condition: a boolean field of such an item is true."""
        ...

    def json_has(self, item: str, field: str) -> str:
        """Returns a condition: such an item has a field with a value."""
        ...

    def records(self, where: str, filters: LogFilters) -> str:
        """Returns a relation of the records that meet a condition, with amendments applied."""
        ...

    def feedback(self, where: str) -> str:
        """Returns a relation of the feedback that meets a condition on `organisation_id`."""
        ...

    def text_condition(self, statement: Statement, filters: LogFilters, words: list[str]) -> str:
        """Returns a condition on `id`: bodies of the record contain all words."""
        ...

    def execute(self, sql: str, values: dict[str, Any]) -> list[Row]:
        """Runs a statement within the time limit of the query."""
        ...


class Statement:
    """SQL under construction. Every value that a client chose is bound, never part of the text."""

    def __init__(self, fragments: SqlFragments) -> None:
        """Starts without values."""
        self.fragments = fragments
        self.values: dict[str, Any] = {}
        self._types: dict[str, ValueType] = {}

    def bind(self, value: object, value_type: ValueType = ValueType.STRING) -> str:
        """Binds a value, and returns its placeholder."""
        name = f"p{len(self.values)}"
        self.values[name] = value
        return self.fragments.placeholder(name, value_type)

    def bind_list(self, values: Iterable[object], value_type: ValueType = ValueType.STRING) -> str:
        """Binds the items of a list for use after `IN`. An empty list matches nothing."""
        return "(" + (", ".join(self.bind(value, value_type) for value in values) or "NULL") + ")"

    def fetch(self, sql: str) -> list[Row]:
        """Runs SQL that contains placeholders of bound values. Values without a placeholder in it are ignored."""
        return self.fragments.execute(sql, self.values)
