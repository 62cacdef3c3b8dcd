"""Values of a LiteLLM configuration: references to environment variables, durations, and seconds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.imports.state import env_reference

if TYPE_CHECKING:
    from penstock.imports.findings import Node

ENV_PREFIX = "os.environ/"
DURATION = re.compile(r"(\d+)\s*(s|m|h|d|w|mo)\Z")
SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "mo": 2_592_000}
MAX_TIMEOUT_MS = 24 * 3600 * 1000


def resolve_text(node: Node) -> str | None:
    """Returns a string. Converts LiteLLM's `os.environ/NAME` to the reference `${NAME}` of a state document."""
    text = node.text()
    if text is None or not text.startswith(ENV_PREFIX):
        return text
    reference = env_reference(text.removeprefix(ENV_PREFIX))
    if reference is None:
        node.report_manual(
            "the name of the environment variable is not allowed here: letters, digits and `_`; rename it"
        )
    return reference


def is_reference(text: str) -> bool:
    """Returns true if a value of the state document is a reference to an environment variable."""
    return text.startswith("${")


def read_secret(node: Node) -> str | None:
    """Returns a credential for the state document, and marks it as imported. The message does not repeat the
    credential.
    """
    text = resolve_text(node)
    if text is None:
        return None
    if is_reference(text):
        node.report_exact(f"read from the environment variable {text[2:-1]} when the state is applied")
    else:
        node.report_exact("copied in clear to the state document; hint: replace it there with ${NAME}")
    return text


def read_timeout_ms(node: Node) -> int | None:
    """Reads a timeout in seconds and returns it in milliseconds."""
    if isinstance(node.value, str) and node.value.startswith(ENV_PREFIX):
        node.report_manual(
            "set request_timeout in the config: milliseconds; a config has no environment variables for it"
        )
        return None
    seconds = node.number()
    if seconds is None:
        return None
    if seconds <= 0:
        node.report_unsupported("a timeout of 0 has no equivalent; leave it out for the default")
        return None
    node.report_approximate("request_timeout: ends when the first byte of the response arrives")
    return min(max(1, round(seconds * 1000)), MAX_TIMEOUT_MS)


def parse_duration(text: str) -> int | None:
    """Returns the seconds of a duration such as `30d`, `1mo` or `90`; `None` if it has another form."""
    if text.isdecimal():
        return int(text[:12])
    matched = DURATION.match(text.strip())
    return int(matched[1][:12]) * SECONDS_PER_UNIT[matched[2]] if matched else None
