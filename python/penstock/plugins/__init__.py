"""What the Python files of an operator import to define checks of guardrails.

A file is a plug-in, and each of its functions with `check` is a check named `<file>.<function>`.
"""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

Stage = Literal["input", "output"]
ALL_STAGES: tuple[Stage, ...] = ("input", "output")


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request or response to check."""

    # Texts in the `scope` of the check.
    texts: list[str]
    # `input`: a request; `output`: a response.
    stage: Stage
    # Slug of the provider.
    provider: str
    model: str
    # Such as `chatComplete`.
    request_type: str
    is_streaming: bool
    metadata: dict[str, str]


class Result(msgspec.Struct, frozen=True):
    """Verdict of a check."""

    passed: bool
    # Shown in the results of the guardrail. Clients see it, so it should not repeat what was found.
    data: dict[str, Any] = {}
    # All texts of the call with changes; `None` if none changed.
    texts: list[str] | None = None


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a check that has none."""


CheckFunction = typing.Callable[..., Any]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A function of a plug-in that is a check."""

    function: CheckFunction
    description: str
    stages: tuple[Stage, ...]
    changes: bool
    # Struct of the parameters, and whether the function takes one.
    parameters: type
    takes_parameters: bool


class PluginError(Exception):
    """A plug-in that cannot be used, and why."""


def check(
    *, description: str, stages: tuple[Stage, ...] = ALL_STAGES, changes: bool = False
) -> Callable[[CheckFunction], Check]:
    """Makes a function a check. It takes a `Call` and, if it has parameters, a `msgspec.Struct`; it returns a `Result`
    or a boolean. `changes` permits it to replace texts.
    """

    def mark(function: CheckFunction) -> Check:
        first, *rest = list(inspect.signature(function).parameters) or [""]
        struct: Any = typing.get_type_hints(function).get(rest[0]) if rest else NoParameters
        is_struct = inspect.isclass(struct) and issubclass(struct, msgspec.Struct)
        if not first or len(rest) > 1 or not is_struct:
            message = f"{function.__name__} must take a `Call` and at most a `msgspec.Struct` of parameters"
            raise PluginError(message)
        return Check(
            function=function,
            description=description,
            stages=stages,
            changes=changes,
            parameters=cast("type", struct),
            takes_parameters=bool(rest),
        )

    return mark
