"""Shared options: argument parsing of the load tests, and environment variables for the scenarios."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HEADERS_VARIABLE = "PENSTOCK_LOAD_HEADERS"
RESULT_VARIABLE = "PENSTOCK_LOAD_RESULT"


def make_int_parser(least: int, maximum: int) -> Callable[[str], int]:
    """Returns an argument parser for integers from `least` to `maximum`; its error message names both limits."""

    def parse_int(text: str) -> int:
        if text.isascii() and text.isdecimal() and least <= int(text) <= maximum:
            return int(text)
        message = f"{text!r} is not an integer from {least} to {maximum}"
        raise argparse.ArgumentTypeError(message)

    return parse_int
