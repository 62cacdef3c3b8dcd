"""Export of a gateway's state as a document, and the plan of changes that makes the state match a document."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.declarative.document import (
    JsonObject,
    diff_fields,
    find_match,
    find_unknown_fields,
    find_unmatched_masks,
    list_field,
    omit_computed,
    omit_fields,
    replace_ids_by_slugs,
    resolve_references,
)
from penstock.declarative.integrations import Integrations
from penstock.declarative.kinds import (
    INITIAL_USAGE,
    ORGANISATION_PATH,
    WORKSPACE_FIELDS,
    WORKSPACES_PATH,
    ApiKeys,
    Configs,
    GatewayState,
    Invites,
    Members,
    Providers,
    RateLimitsPolicies,
    ResourceKind,
    SecretReferences,
    UsageLimitsPolicies,
    Users,
    VirtualKeys,
)
from penstock.declarative.prompts import Labels, PromptPartials, Prompts
from penstock.errors import Problem, RemoteError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.remote import ManagementClient

    ProgressBar = Callable[[list[JsonObject]], Iterable[JsonObject]]

# Kinds of the organisation in the order of creation; deletions run in reverse order.
ORGANISATION_KINDS: tuple[ResourceKind, ...] = (SecretReferences(), Integrations())
WORKSPACE_KINDS: tuple[ResourceKind, ...] = (
    Members(),
    Integrations(),
    Providers(),
    VirtualKeys(),
    Configs(),
    Labels(),
    PromptPartials(),
    Prompts(),
    ApiKeys(),
    UsageLimitsPolicies(),
    RateLimitsPolicies(),
)
ORGANISATION_KINDS_LAST: tuple[ResourceKind, ...] = (ApiKeys(), Users(), Invites())

DOCUMENT_VERSION = 1
ORGANISATION_PARTS = ("settings", "defaults")
# Organisation settings that workspaces inherit.
INHERITED_SETTINGS = frozenset({"security_settings", "security_settings_overrides", "block_inline_config"})
# Workspace fields whose values depend on `INHERITED_SETTINGS`.
INHERITING_FIELDS = ("security_settings", "settings")
DOCUMENT_FIELDS = ("version", "organisation", "workspaces")
ORGANISATION_FIELDS = (*ORGANISATION_PARTS, *(kind.name for kind in (*ORGANISATION_KINDS, *ORGANISATION_KINDS_LAST)))
WORKSPACE_DOCUMENT_FIELDS = (
    "id",
    "slug",
    "is_default",
    INITIAL_USAGE,
    *WORKSPACE_FIELDS,
    *(kind.name for kind in WORKSPACE_KINDS),
)


class Step(NamedTuple):
    """One change to apply, as the plan shows it."""

    sign: str
    summary: str
    # Path in the document; empty if the document does not contain it.
    path: str
    action: Callable[[], object]

    def apply(self) -> None:
        """Applies the change. Raises `RemoteError` with the path and the summary if it fails."""
        try:
            self.action()
        except RemoteError as error:
            raise RemoteError(": ".join(part for part in (self.path, self.summary, str(error)) if part)) from None


def export_state(remote: ManagementClient, track_progress: ProgressBar = iter) -> JsonObject:
    """Returns the complete state as a document; credentials stay masked."""
    return _read_state(GatewayState(remote), track_progress)


def _read_state(state: GatewayState, track_progress: ProgressBar) -> JsonObject:
    workspaces = [_read_workspace(state, row) for row in track_progress(state.workspaces)]
    parts = {
        part: omit_fields(state.remote.request("GET", f"{ORGANISATION_PATH}/{part}"), "object")
        for part in ORGANISATION_PARTS
    }
    kinds = {kind.name: kind.read_all(state, None) for kind in (*ORGANISATION_KINDS, *ORGANISATION_KINDS_LAST)}
    return {"version": DOCUMENT_VERSION, "organisation": {**parts, **kinds}, "workspaces": workspaces}


def _read_workspace(state: GatewayState, row: JsonObject) -> JsonObject:
    exported = {name: row[name] for name in ("id", "slug", "is_default", *WORKSPACE_FIELDS)}
    exported["defaults"] = omit_fields(row["defaults"] or {}, "is_default", "object")
    exported["usage_limits"] = omit_computed(row["usage_limits"])
    return {**exported, **{kind.name: kind.read_all(state, row) for kind in WORKSPACE_KINDS}}


class Plan:
    """Changes that make the state of a gateway match a document."""

    def __init__(
        self,
        remote: ManagementClient,
        desired_state: Mapping[str, Any],
        environ: Mapping[str, str],
        *,
        prune: bool,
        key: str = "",
        track_progress: ProgressBar = iter,
    ) -> None:
        """Compares the document with the gateway. Changes nothing."""
        self._prune = prune
        self.steps: list[Step] = []
        # New keys and links, which the gateway returns only once. Each has a kind (`key` or `link`), the name of its
        # resource, and the key or link itself.
        self.texts: list[tuple[str, str, str]] = []
        self._removals: list[Step] = []
        # True if a planned change of the organisation may change values that workspaces inherit.
        self._passes_changes_to_children = False
        self._problems: list[Problem] = []
        document = cast("JsonObject", resolve_references("", dict(desired_state), environ, self._problems))
        self._problems += find_shape_problems(document)
        self._raise_problems()
        self._state = GatewayState(remote, key)
        self._build_steps(document, _read_state(self._state, track_progress))
        self.steps += reversed(self._removals)
        self._raise_problems()

    def _raise_problems(self) -> None:
        if self._problems:
            message = "the state cannot be applied:"
            raise SettingsError(message, self._problems)

    def _build_steps(self, desired: JsonObject, current: JsonObject) -> None:
        organisation = cast("JsonObject", desired.get("organisation") or {})
        for part in (part for part in ORGANISATION_PARTS if part in organisation):
            changed = diff_fields(organisation[part] or {}, current["organisation"].get(part, {}))
            self._passes_changes_to_children |= not INHERITED_SETTINGS.isdisjoint(changed)
            self._plan_organisation_part(part, changed)
        pairs = self._pair_workspaces(desired, current)
        for kind in ORGANISATION_KINDS:
            self._plan_resources(kind, "organisation", organisation, current["organisation"], None)
        for path, workspace, pair, workspace_ref in pairs:
            for kind in WORKSPACE_KINDS:
                self._plan_resources(kind, path, workspace, pair or {}, workspace_ref)
            self._plan_workspace_update(path, workspace, pair, workspace_ref)
        for kind in ORGANISATION_KINDS_LAST:
            self._plan_resources(kind, "organisation", organisation, current["organisation"], None)

    def _plan_organisation_part(self, part: str, changed: JsonObject) -> None:
        if changed:
            path, summary = f"{ORGANISATION_PATH}/{part}", f"organisation {part}: {', '.join(changed)}"
            self._add_step(
                "~", summary, f"organisation.{part}", lambda: self._state.remote.request("PUT", path, changed)
            )

    def _pair_workspaces(
        self, desired: JsonObject, current: JsonObject
    ) -> list[tuple[str, JsonObject, JsonObject | None, JsonObject]]:
        """Pairs the workspaces of the document with those of the gateway. Missing ones are created first, because
        resources refer to them.
        """
        remaining = list(current["workspaces"])
        pairs: list[tuple[str, JsonObject, JsonObject | None, JsonObject]] = []
        for index, workspace in enumerate(list_field(desired, "workspaces")):
            path = f"workspaces[{index}]"
            result = self._find_workspace(path, workspace, remaining)
            workspace_ref: JsonObject = {"id": result["id"]} if result else {}
            if result:
                remaining.remove(result)
                self._plan_slug(path, workspace, result)
            else:
                self._add_step(
                    "+", f"workspace {workspace['name']}", path, self._workspace_creation(workspace, workspace_ref)
                )
            pairs.append((path, workspace, result, workspace_ref))
        for removed in remaining if self._prune and "workspaces" in desired else []:
            if not removed["is_default"]:
                body: JsonObject = {"name": removed["name"], "force_delete": True}
                operation = partial(self._state.remote.request, "DELETE", f"{WORKSPACES_PATH}/{removed['id']}", body)
                self._removals.append(Step("-", f"workspace {removed['name']}", "", operation))
        return pairs

    def _find_workspace(self, path: str, workspace: JsonObject, remaining: list[JsonObject]) -> JsonObject | None:
        """Returns the gateway's workspace for an entry of the document. An entry without a slug is matched by its name,
        others by their slug. If no workspace has this slug, the default entry matches the default workspace.
        """
        if not workspace.get("slug"):
            return find_match(workspace, remaining, ("name",))
        if match := find_match(workspace, remaining, ("slug",)):
            return match
        if workspace.get("is_default"):
            return next((row for row in remaining if row["is_default"]), None)
        if same_name := find_match(workspace, remaining, ("name",)):
            reason = f"is not {same_name['slug']!r}, the slug of the workspace with this name; use that slug, or another name"
            self._problems.append(Problem(f"{path}.slug", reason))
        return None

    def _plan_slug(self, path: str, workspace: JsonObject, existing: JsonObject) -> None:
        """Gives the default workspace the slug of the document. Every store has a default workspace, with a generated
        slug.
        """
        slug = workspace.get("slug")
        if slug and slug != existing["slug"]:
            at, summary = f"{WORKSPACES_PATH}/{existing['id']}", f"workspace {workspace['name']}: slug"
            self._add_step("~", summary, path, partial(self._state.remote.request, "PUT", at, {"slug": slug}))

    def _workspace_creation(self, workspace: JsonObject, workspace_ref: JsonObject) -> Callable[[], None]:
        names = ("slug", INITIAL_USAGE, *WORKSPACE_FIELDS)
        body = {name: workspace[name] for name in names if workspace.get(name) is not None}
        if "defaults" in body:
            # A new workspace has no config yet that `user_api_key_config` could refer to.
            body["defaults"] = omit_fields(body["defaults"], "user_api_key_config")

        def create() -> None:
            created = self._state.remote.request("POST", WORKSPACES_PATH, body)
            workspace_ref["id"] = created["id"]

        return create

    def _plan_workspace_update(
        self, path: str, workspace: JsonObject, existing: JsonObject | None, workspace_ref: JsonObject
    ) -> None:
        """Updates a workspace after its resources exist, because its defaults may refer to them."""
        fields = {name: workspace[name] for name in WORKSPACE_FIELDS if name in workspace}
        initial_fields = {**fields, "defaults": omit_fields(fields.get("defaults") or {}, "user_api_key_config")}
        changed = self._diff_workspace(fields, existing) if existing else diff_fields(fields, initial_fields)
        may_differ = [
            name for name in INHERITING_FIELDS if self._passes_changes_to_children and existing and name in fields
        ]
        if not (changed or may_differ):
            return

        def update() -> None:
            at, now = f"{WORKSPACES_PATH}/{workspace_ref['id']}", changed
            if may_differ:
                # The change of the organisation is applied first, and may have changed values that this workspace
                # inherits.
                now = self._diff_workspace(fields, self._state.remote.request("GET", at))
            if now:
                self._state.remote.request("PUT", at, now)

        changed_names = ", ".join(dict.fromkeys([*changed, *may_differ]))
        self._add_step("~", f"workspace {workspace['name']}: {changed_names}", path, update)

    def _diff_workspace(self, fields: JsonObject, existing: JsonObject) -> JsonObject:
        """Returns the fields of a workspace that differ from the gateway."""
        desired = dict(fields)
        if "security_settings" in desired:
            # The gateway stores a value for every flag. Flags that the document omits stay as they are, so they are no
            # difference.
            desired["security_settings"] = {**existing["security_settings"], **(desired["security_settings"] or {})}
        changed = diff_fields(desired, existing)
        if "settings" in changed:
            # The API keeps omitted rules, so rules that the document omits are set to null.
            cleared = dict.fromkeys(cast("JsonObject", existing.get("settings") or {}))
            changed["settings"] = {**cleared, **cast("JsonObject", changed["settings"] or {})}
        return changed

    def _plan_resources(
        self, kind: ResourceKind, above: str, desired: JsonObject, current: JsonObject, workspace_ref: JsonObject | None
    ) -> None:
        """Compares the resources of one kind in a workspace or in the organisation. A kind that the document omits
        stays as it is.
        """
        if kind.name not in desired:
            return
        remaining = list(list_field(current, kind.name))
        inside = f"{desired['name']} / " if workspace_ref is not None else ""
        for index, resource in enumerate(list_field(desired, kind.name)):
            path, summary = f"{above}.{kind.name}[{index}]", f"{inside}{kind.name} {kind.display_name(resource)}"
            existing = find_match(resource, remaining, kind.match_fields(resource))
            for name in kind.secret_fields:
                self._problems += find_unmatched_masks(f"{path}.{name}", resource.get(name), (existing or {}).get(name))
            if existing is None:
                self._plan_creation(kind, path, summary, resource, workspace_ref)
                continue
            remaining.remove(existing)
            self._plan_change(kind, path, summary, resource, existing, workspace_ref)
        for removed in remaining if self._prune else []:
            if not kind.is_protected(self._state, removed):
                operation = partial(kind.delete, self._state, workspace_ref, removed)
                self._removals.append(Step("-", f"{inside}{kind.name} {kind.display_name(removed)}", "", operation))

    def _plan_creation(
        self, kind: ResourceKind, path: str, summary: str, resource: JsonObject, workspace_ref: JsonObject | None
    ) -> None:
        if kind.can_skip_creation(self._state, resource):
            return
        if (email := resource.get(kind.email_field)) and email not in self._state.ids:
            problem = Problem(f"{path}.{kind.email_field}", f"{email!r} is no user here; hint: organisation.invites")
            self._problems.append(problem)

        def create() -> None:
            created = kind.create(self._state, workspace_ref, resource)
            for name, text in (("key", created.get("key")), ("link", created.get("invite_link"))):
                if text:
                    self.texts.append((name, summary, text))

        self._add_step("+", summary, path, create)

    def _plan_change(
        self,
        kind: ResourceKind,
        path: str,
        summary: str,
        resource: JsonObject,
        existing: JsonObject,
        workspace_ref: JsonObject | None,
    ) -> None:
        fixed = cast("JsonObject", replace_ids_by_slugs(kind.fixed_values(resource), self._state.named))
        other = diff_fields(fixed, existing)
        reason = "is chosen once, at creation, and differs on the gateway; hint: delete it first"
        self._problems += [Problem(f"{path}.{name}", reason) for name in other]
        if changed := kind.confirm_changes(
            self._state, existing, kind.diff_resource(resource, existing, prune=self._prune)
        ):

            def update() -> None:
                kind.update(self._state, workspace_ref, existing, changed)

            self._add_step("~", f"{summary}: {', '.join(changed)}", path, update)

    def _add_step(self, sign: str, summary: str, path: str, operation: Callable[[], Any]) -> None:
        self.steps.append(Step(sign, summary, path, operation))


def find_shape_problems(document: JsonObject) -> Iterator[Problem]:
    """Yields all problems with the shape of a document, with their paths."""
    if document.get("version") != DOCUMENT_VERSION:
        yield Problem("version", f"must be {DOCUMENT_VERSION}")
    yield from find_unknown_fields("", document, DOCUMENT_FIELDS)
    organisation: object = document.get("organisation") or {}
    yield from find_unknown_fields("organisation", organisation, ORGANISATION_FIELDS)
    if isinstance(organisation, dict):
        for kind in (*ORGANISATION_KINDS, *ORGANISATION_KINDS_LAST):
            yield from _find_resource_problems(
                f"organisation.{kind.name}", cast("JsonObject", organisation).get(kind.name), kind
            )
    for path, workspace in _enumerate_rows("workspaces", document.get("workspaces")):
        yield from find_unknown_fields(path, workspace, WORKSPACE_DOCUMENT_FIELDS)
        if isinstance(workspace, dict):
            if not cast("JsonObject", workspace).get("name"):
                yield Problem(f"{path}.name", "is needed")
            yield from _find_extra_defaults(path, cast("JsonObject", workspace))
            for kind in WORKSPACE_KINDS:
                yield from _find_resource_problems(
                    f"{path}.{kind.name}", cast("JsonObject", workspace).get(kind.name), kind
                )
    if not isinstance(document.get("workspaces") or [], list):
        yield Problem("workspaces", "must be a list")


def _find_extra_defaults(path: str, workspace: JsonObject) -> Iterator[Problem]:
    """Yields a problem for each default config of a workspace after the first. With two of them, each run would move
    the default from one to the other.
    """
    rows = [
        (row_path, cast("JsonObject", row))
        for row_path, row in _enumerate_rows(f"{path}.configs", workspace.get("configs"))
        if isinstance(row, dict)
    ]
    first, *others = [(location, row) for location, row in rows if row.get("is_default")] or [("", {})]
    for location, row in others:
        first_label = f"{first[0]} ({first[1].get('name')!r})"
        yield Problem(
            f"{location}.is_default", f"makes {row.get('name')!r} the default beside {first_label}: a workspace has one"
        )


def _find_resource_problems(path: str, value: object, kind: ResourceKind) -> Iterator[Problem]:
    if not isinstance(value or [], list):
        yield Problem(path, "must be a list")
    for row_path, row in _enumerate_rows(path, value):
        yield from find_unknown_fields(row_path, row, kind.allowed_fields)
        if isinstance(row, dict) and not any(cast("JsonObject", row).get(name) for name in kind.named_by):
            yield Problem(f"{row_path}.{kind.named_by[-1]}", "is needed")


def _enumerate_rows(path: str, value: object) -> Iterator[tuple[str, object]]:
    rows = cast("list[object]", value) if isinstance(value, list) else []
    yield from ((f"{path}[{index}]", row) for index, row in enumerate(rows))
