"""Optional dependencies of the wheel. A feature whose client library is missing names the extra that installs it."""

from __future__ import annotations

from importlib.util import find_spec

# Module of each extra. The extra is installed if this module can be found.
MODULES = {"aws": "aiobotocore", "azure": "azure.identity", "import": "nacl", "postgres": "asyncpg", "redis": "redis"}


def find_missing_extra(extra: str) -> str | None:
    """Returns the end of an error message that names the extra; `None` if the client library of the extra is
    installed.
    """
    try:
        is_installed = find_spec(MODULES[extra]) is not None
    except ModuleNotFoundError:
        # `find_spec` raises this if the parent package of the module is missing.
        is_installed = False
    return None if is_installed else describe_extra(extra)


def describe_extra(extra: str) -> str:
    """Returns the end of an error message about a feature that needs an extra."""
    return f"needs the extra `{extra}`: pip install 'penstock[{extra}]'"
