"""Optional dependencies of the wheel. A feature whose client library is missing names the extra that installs it."""

from __future__ import annotations

from importlib.util import find_spec

# By extra: the module that shows whether it is installed.
MODULES = {"aws": "aiobotocore", "azure": "azure.identity", "import": "nacl", "postgres": "asyncpg", "redis": "redis"}


def find_missing_extra(extra: str) -> str | None:
    """Returns what to install for a feature; `None` if its client library is installed."""
    try:
        is_installed = find_spec(MODULES[extra]) is not None
    except ModuleNotFoundError:
        # The parent package of the module is missing.
        is_installed = False
    return None if is_installed else describe_extra(extra)


def describe_extra(extra: str) -> str:
    """Returns the end of a sentence about a feature that an extra brings."""
    return f"needs the extra `{extra}`: pip install 'penstock[{extra}]'"
