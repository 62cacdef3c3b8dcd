"""API for plug-ins: Python files of an operator that define checks for guardrails import this module.

Each file is a plug-in. A function in it with the decorator `check` is a check named `<file>.<function>`.
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

    # Texts that the parameter `scope` of the check selects.
    texts: list[str]
    # `input` for a request, `output` for a response.
    stage: Stage
    # Slug of the provider to which the request is sent.
    provider: str
    model: str
    # Operation of the request, such as `chatComplete`.
    request_type: str
    is_streaming: bool
    metadata: dict[str, str]


class Result(msgspec.Struct, frozen=True):
    """Verdict of a check."""

    passed: bool
    # Details for the results of the guardrail. Clients see them, so they should not contain the text that was found.
    data: dict[str, Any] = {}
    # All texts of the call, including unchanged ones; `None` if none changed.
    texts: list[str] | None = None


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a check without parameters."""


CheckFunction = typing.Callable[..., Any]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A function of a plug-in that is a check."""

    function: CheckFunction
    description: str
    stages: tuple[Stage, ...]
    changes: bool
    # Struct type of the parameters; `NoParameters` if there are none.
    parameters: type
    takes_parameters: bool


class PluginError(Exception):
    """A plug-in cannot be used; the message contains the reason."""


def check(
    *, description: str, stages: tuple[Stage, ...] = ALL_STAGES, changes: bool = False
) -> Callable[[CheckFunction], Check]:
    """Decorator that makes a function a check. The function takes a `Call` and, if it has parameters, a
    `msgspec.Struct`. It returns a `Result` or a boolean. `changes` permits it to replace texts.
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
