"""SQLAlchemy's asynchronous engine without its ORM, which this package does not use. The package `sqlalchemy.ext.asyncio`
imports sessions, and with them the ORM: 6 MB in each process that opens the store, and a fifth of the time of the import.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

PACKAGE = "sqlalchemy.ext.asyncio"


class PartialPackage(ModuleType):
    """A package whose modules can be imported, and whose own code runs only when one of its names is read."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any name of the package
        """Runs the code of the package and returns the name, for other libraries."""
        spec = self.__spec__
        is_known = name.startswith("__") or importlib.util.find_spec(f"{PACKAGE}.{name}") is not None
        # Before it imports a module of the package, the import system looks up the name of the module here.
        if is_known or self.__dict__.get("is_complete") or spec is None or spec.loader is None:
            raise AttributeError(name)
        self.__dict__["is_complete"] = True
        spec.loader.exec_module(self)
        return getattr(self, name)


def _import_engine() -> ModuleType:
    spec = importlib.util.find_spec(PACKAGE)
    if PACKAGE not in sys.modules and spec is not None:
        package = PartialPackage(PACKAGE)
        package.__spec__, package.__file__ = spec, spec.origin
        package.__path__ = list(spec.submodule_search_locations or ())
        package.__package__, package.__loader__ = PACKAGE, spec.loader
        sys.modules[PACKAGE] = package
    return importlib.import_module(f"{PACKAGE}.engine")


create_async_engine: Any = _import_engine().create_async_engine
