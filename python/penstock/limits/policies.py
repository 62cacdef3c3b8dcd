"""Policies: the fields and rules that usage limits policies and rate limits policies share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import select

from penstock.errors import ConflictError, NotFoundError, Problem, shorten
from penstock.kit.resource import Resource
from penstock.kit.shared_fields import (
    CreatedAt,
    CreatedBy,
    Id,
    Name,
    ObjectType,
    OrganisationId,
    OwnOrganisationId,
    UpdatedAt,
    WorkspaceId,
    WorkspaceIdOrSlug,
)
from penstock.limits.usage import delete_usage
from penstock.similar_names import NameSuggester
from penstock.store.limit_tables import rate_limits_policies, usage_limits_policies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.kit.tenant_session import TenantSession
    from penstock.store.tenant import Row

ACTIVE, ARCHIVED = "active", "archived"
USAGE_POLICIES = Resource("policies", usage_limits_policies, publishes=True)
RATE_POLICIES = Resource("policies", rate_limits_policies, publishes=True)
MAX_CONDITIONS, MAX_CONDITION_VALUES, MAX_VALUE_CHARS, MAX_KEY_CHARS = 20, 100, 512, 128
MAX_DESCRIPTION_CHARS = 500
METADATA_PREFIX = "metadata."
SHARED_KEYS = ("api_key", "config", "model", "prompt", "provider", "virtual_key", "workspace_id")
RATE_KEYS = (*SHARED_KEYS, "endpoint_type")
MCP_KEYS = ("mcp_server", "mcp_tool")
# Operations of the data plane that a client can request, with the names that records use.
ENDPOINT_TYPES = frozenset(
    [
        "batchEmbedContents",
        "cancelBatch",
        "cancelFinetune",
        "cancelModelResponse",
        "chatComplete",
        "complete",
        "converse",
        "converseCountTokens",
        "converseStream",
        "countTokens",
        "createBatch",
        "createFinetune",
        "createModelResponse",
        "createSpeech",
        "createTranscription",
        "createTranslation",
        "deleteFile",
        "deleteModelResponse",
        "embed",
        "embedContent",
        "generateContent",
        "getBatchOutput",
        "getModelResponse",
        "imageEdit",
        "imageGenerate",
        "invokeModel",
        "invokeModelStream",
        "listBatches",
        "listFiles",
        "listFinetuneCheckpoints",
        "listFinetuneEvents",
        "listFinetunes",
        "listResponseInputItems",
        "messages",
        "messagesCountTokens",
        "models",
        "moderate",
        "ocr",
        "proxy",
        "realtime",
        "rerank",
        "retrieveBatch",
        "retrieveFile",
        "retrieveFileContent",
        "retrieveFinetune",
        "streamGenerateContent",
        "uploadFile",
    ]
)

_Value = Annotated[str, Meta(min_length=1, max_length=MAX_VALUE_CHARS)]
_Values = Annotated[list[_Value], Meta(min_length=1, max_length=MAX_CONDITION_VALUES)]
_Key = Annotated[str, Meta(min_length=1, max_length=MAX_KEY_CHARS)]
_Description = Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARS)]


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A condition on requests. A policy applies to requests that meet all of its conditions."""

    key: Annotated[
        _Key,
        Meta(
            description="property of the request: `api_key`, `config`, `model`, `prompt`, `provider`, `virtual_key`, `workspace_id` or `metadata.<name>`; for rate limits policies also `endpoint_type`, and with the target `mcp_tools` `mcp_server` and `mcp_tool`"
        ),
    ]
    value: Annotated[
        _Value | _Values,
        Meta(description="value, or list of values of which one must match; of a model, `*` at the end stands for any"),
    ]
    excludes: Annotated[bool | UnsetType, Meta(description="true: requests with one of the values do not match")] = (
        UNSET
    )


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A property of requests by which they are counted. Requests without it are one group."""

    key: Annotated[_Key, Meta(description="property of the request, as in `conditions`")]


Conditions = Annotated[list[Condition], Meta(min_length=1, max_length=MAX_CONDITIONS)]
Groups = Annotated[list[Group], Meta(min_length=1, max_length=MAX_CONDITIONS)]
ConditionsField = Annotated[Conditions, Meta(description="conditions that a request must meet, all of them")]
GroupsField = Annotated[Groups, Meta(description="each combination of values of these keys has a limit of its own")]
DescriptionField = Annotated[_Description | None, Meta(description="purpose of the policy")]
DryRunField = Annotated[bool, Meta(description="true: requests over the limit are recorded and not rejected")]
OptionalPolicyName = Annotated[Name | None, Meta(description="display name")]


class NewPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a new policy of either kind."""

    conditions: ConditionsField
    group_by: GroupsField
    name: OptionalPolicyName = None
    description: DescriptionField = None
    dry_run: DryRunField = False
    workspace_id: WorkspaceIdOrSlug = None
    organisation_id: OwnOrganisationId = None


class PolicyUpdate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of a policy of either kind to change; omitted fields stay as they are."""

    name: Annotated[Name | UnsetType | None, Meta(description="display name; null removes it")] = UNSET
    description: Annotated[
        _Description | UnsetType | None, Meta(description="purpose of the policy; null removes it")
    ] = UNSET
    conditions: Annotated[Conditions | UnsetType, Meta(description="conditions; they replace the stored ones")] = UNSET
    dry_run: Annotated[
        bool | UnsetType, Meta(description="true: requests over the limit are recorded and not rejected")
    ] = UNSET


class PolicyFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a policy of either kind in a response."""

    id: Id
    name: OptionalPolicyName
    description: DescriptionField
    conditions: ConditionsField
    group_by: GroupsField
    dry_run: DryRunField
    status: Annotated[str, Meta(description="`active` or `archived`; archived policies have no effect")]
    workspace_id: WorkspaceId
    organisation_id: OrganisationId
    created_by: CreatedBy
    created_at: CreatedAt
    last_updated_at: UpdatedAt


class ConditionWarning(msgspec.Struct, frozen=True):
    """A reason why a policy can match no request."""

    path: Annotated[str, Meta(description="the condition, such as `conditions[0].value`")]
    message: Annotated[str, Meta(description="what is wrong")]


PolicyWarnings = Annotated[
    list[ConditionWarning] | UnsetType,
    Meta(description="only if the policy can match no request as it is: why; the policy is saved nevertheless"),
]


class CreatedPolicy(msgspec.Struct, frozen=True):
    """A policy that was created."""

    id: Id
    object: ObjectType
    warnings: PolicyWarnings = UNSET


class UpdatedPolicy(msgspec.Struct, frozen=True):
    """Response to the update of a policy."""

    warnings: PolicyWarnings = UNSET


class KeyRules:
    """Condition and group keys that a policy may use."""

    def __init__(self, allowed: Sequence[str], other: Iterable[str] = (), other_need: str = "") -> None:
        """Stores the allowed keys. `other` are keys that only other policies may use, and `other_need` names these
        policies in error messages.
        """
        self._allowed, self._other, self._other_need = allowed, frozenset(other), other_need
        self._suggester = NameSuggester()

    def find_problems(self, conditions: Iterable[Condition], groups: Iterable[Group]) -> list[Problem]:
        """Returns all problems of conditions and groups, with their paths."""
        problems: list[Problem] = []
        for index, condition in enumerate(conditions):
            path = f"conditions[{index}]"
            problems += self._key_problems(f"{path}.key", condition.key)
            problems += _find_value_problems(f"{path}.value", condition)
        seen_keys: set[str] = set()
        for index, group in enumerate(groups):
            path = f"group_by[{index}].key"
            problems += self._key_problems(path, group.key)
            if group.key in seen_keys:
                problems.append(Problem(path, f"{shorten(group.key)!r} is there twice; list each key once"))
            seen_keys.add(group.key)
        return problems

    def _key_problems(self, path: str, key: str) -> Iterator[Problem]:
        if key in self._allowed or (key.startswith(METADATA_PREFIX) and key != METADATA_PREFIX):
            return
        names = ", ".join([*self._allowed, f"{METADATA_PREFIX}<name>"])
        if key in self._other:
            reason = f"is only for {self._other_need}"
        elif similar := self._suggester.find(key, self._allowed):
            reason = f"is not known; did you mean {similar!r}?"
        else:
            reason = "is not known"
        yield Problem(path, f"{shorten(key)!r} {reason}{'' if reason.endswith('?') else ';'} allowed: {names}")


def _find_value_problems(path: str, condition: Condition) -> Iterator[Problem]:
    values = condition_values(condition.value)
    for index, value in enumerate(values):
        at = path if isinstance(condition.value, str) else f"{path}[{index}]"
        if condition.key == "endpoint_type" and value not in ENDPOINT_TYPES:
            similar = NameSuggester().find(value, sorted(ENDPOINT_TYPES))
            hint = f"did you mean {similar!r}?" if similar else f"allowed: {', '.join(sorted(ENDPOINT_TYPES))}"
            yield Problem(at, f"{shorten(value)!r} is no kind of endpoint; {hint}")
        if condition.key == "model" and "*" in value[:-1]:
            yield Problem(at, f"{shorten(value)!r} is not allowed: `*` may only be the last character")


def condition_values(value: str | list[str]) -> list[str]:
    """Returns the values of a condition, which come as one string or as a list."""
    return [value] if isinstance(value, str) else value


async def get_policy(session: TenantSession, resource: Resource, key: str, status: str = ACTIVE) -> Row:
    """Returns the policy with this id and status. Raises NotFoundError if there is none."""
    row = await resource.get(session, key)
    reject_other_status(row, status)
    return row


def reject_other_status(row: Row, status: str = ACTIVE) -> None:
    """Raises NotFoundError if a policy has another status."""
    if row["status"] != status:
        hint = "; hint: status=archived" if status == ACTIVE else ""
        raise NotFoundError(f"the policy {row['id']!r} is {row['status']}{hint}")


async def reject_too_many(session: TenantSession) -> None:
    """Raises ConflictError if the workspace already has as many active policies, of both kinds together, as the settings
    allow.
    """
    counts = [
        await session.count(table, [table.c.status == ACTIVE])
        for table in (usage_limits_policies, rate_limits_policies)
    ]
    if sum(counts) >= session.max_policies:
        reason = f"has {sum(counts)} active policies; at most {session.max_policies} are allowed: delete one first"
        raise ConflictError(f"workspace_id {reason}", [Problem("workspace_id", reason)])


def common_columns(session: TenantSession, data: NewPolicy) -> dict[str, Any]:
    """Returns the columns of a new policy that both kinds have."""
    written = msgspec.to_builtins(data)
    names = ("name", "description", "conditions", "group_by", "dry_run")
    return {
        **{name: written[name] for name in names},
        "workspace_id": session.required_workspace_id,
        "status": ACTIVE,
        "created_by": session.caller.actor_id,
    }


async def delete_policies(session: TenantSession) -> None:
    """Deletes all policies of the session's workspace, with their usage."""
    for resource in (USAGE_POLICIES, RATE_POLICIES):
        rows = await session.fetch_rows(select(resource.table.c.id), resource.table)
        await delete_usage(session.connection, [row["id"] for row in rows])
        await resource.delete_all(session)
