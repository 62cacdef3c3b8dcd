"""What the load tests' commands may be told, and what the runner tells the scenarios."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HEADERS_VARIABLE = "PENSTOCK_LOAD_HEADERS"
RESULT_VARIABLE = "PENSTOCK_LOAD_RESULT"


def between(least: int, most: int) -> Callable[[str], int]:
    """Make a reader of whole numbers from the least to the most; who names another is told both."""

    def read(text: str) -> int:
        if text.isascii() and text.isdecimal() and least <= int(text) <= most:
            return int(text)
        message = f"{text!r} is no whole number from {least} to {most}"
        raise argparse.ArgumentTypeError(message)

    return read
