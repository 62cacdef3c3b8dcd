"""Avro in, lines of JSON out: a program of its own, so that what a provider's file takes to be read ends with it."""

from __future__ import annotations

import resource

import msgspec
from fastavro import reader

# A small file may say that it holds much.
MOST_MEMORY, LONGEST_OUTPUT = 1024**3, 4 * 1024**3


def main() -> None:
    """Read records from the input, and write each as a line."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LONGEST_OUTPUT, LONGEST_OUTPUT))
    encoder = msgspec.json.Encoder()
    # What the interpreter has opened may be unbuffered, and writes less than it is given.
    with open(0, "rb", closefd=False) as given, open(1, "wb", closefd=False) as lines:
        lines.writelines(encoder.encode(record) + b"\n" for record in reader(given))


if __name__ == "__main__":
    main()
