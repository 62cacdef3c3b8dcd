"""What a gateway holds, written down; and what must be done so that it becomes what is written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.declarative.document import (
    Thing,
    bare,
    changes,
    listed,
    match,
    renamed,
    resolved,
    strangers,
    unknown,
    without,
)
from penstock.declarative.integrations import Integrations
from penstock.declarative.kinds import (
    ORGANISATION,
    WORKSPACE_FIELDS,
    WORKSPACES,
    ApiKeys,
    Configs,
    Ground,
    Invites,
    Kind,
    Members,
    Providers,
    References,
    Users,
    VirtualKeys,
)
from penstock.errors import Problem, SettingsError
from penstock.remote import RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.remote import Remote

    Bar = Callable[[list[Thing]], Iterable[Thing]]

# In the order in which they are made; what is removed goes the other way.
OF_ORGANISATION: tuple[Kind, ...] = (References(), Integrations())
OF_WORKSPACE: tuple[Kind, ...] = (Members(), Integrations(), Providers(), VirtualKeys(), Configs(), ApiKeys())
OF_ORGANISATION_LAST: tuple[Kind, ...] = (ApiKeys(), Users(), Invites())

VERSION = 1
PARTS = ("settings", "defaults")
# What the organisation says in these holds in workspaces too, or is given to them; of a workspace it is in these.
HANDED_DOWN = frozenset({"security_settings", "security_settings_overrides", "block_inline_config"})
HANDED_TO = ("security_settings", "settings")
TOP = ("version", "organisation", "workspaces")
OF_ALL = (*PARTS, *(kind.name for kind in (*OF_ORGANISATION, *OF_ORGANISATION_LAST)))
OF_EACH = ("id", "slug", "is_default", *WORKSPACE_FIELDS, *(kind.name for kind in OF_WORKSPACE))


class Step(NamedTuple):
    """One thing to be done, as the plan says it."""

    sign: str
    what: str
    # Where the document says so; empty for what it does not hold.
    path: str
    act: Callable[[], object]

    def do(self) -> None:
        """Do it, or say what could not be done."""
        try:
            self.act()
        except RemoteError as error:
            raise RemoteError(": ".join(part for part in (self.path, self.what, str(error)) if part)) from None


def export(remote: Remote, bar: Bar = iter) -> Thing:
    """Write everything down; credentials stay masked."""
    return _everything(Ground(remote), bar)


def _everything(ground: Ground, bar: Bar) -> Thing:
    workspaces = [_workspace(ground, row) for row in bar(ground.workspaces)]
    parts = {part: without(ground.remote.ask("GET", f"{ORGANISATION}/{part}"), "object") for part in PARTS}
    kinds = {kind.name: kind.read(ground, None) for kind in (*OF_ORGANISATION, *OF_ORGANISATION_LAST)}
    return {"version": VERSION, "organisation": {**parts, **kinds}, "workspaces": workspaces}


def _workspace(ground: Ground, row: Thing) -> Thing:
    shown = {name: row[name] for name in ("id", "slug", "is_default", *WORKSPACE_FIELDS)}
    shown["defaults"] = without(row["defaults"] or {}, "is_default", "object")
    shown["usage_limits"] = bare(row["usage_limits"])
    return {**shown, **{kind.name: kind.read(ground, row) for kind in OF_WORKSPACE}}


class Plan:
    """What must be done so that what is there becomes what is written."""

    def __init__(
        self,
        remote: Remote,
        wanted: Mapping[str, Any],
        environ: Mapping[str, str],
        *,
        prune: bool,
        key: str = "",
        bar: Bar = iter,
    ) -> None:
        """Compare; nothing is changed."""
        self._prune = prune
        self.steps: list[Step] = []
        # What was made and is shown once: what it is, of what, and its text.
        self.texts: list[tuple[str, str, str]] = []
        self._removals: list[Step] = []
        # Slugs that things were given in the place of those that are written.
        self._renamed: dict[str, str] = {}
        # Whether workspaces are given something by what the organisation is told before them.
        self._hands_down = False
        self._problems: list[Problem] = []
        document = cast("Thing", resolved("", dict(wanted), environ, self._problems))
        self._problems += _misshapen(document)
        self._refuse()
        self._ground = Ground(remote, key)
        self._compare(document, _everything(self._ground, bar))
        self.steps += reversed(self._removals)
        self._refuse()

    def _refuse(self) -> None:
        if self._problems:
            message = "the state cannot be applied:"
            raise SettingsError(message, self._problems)

    def _compare(self, wanted: Thing, there: Thing) -> None:
        whole = cast("Thing", wanted.get("organisation") or {})
        for part in (part for part in PARTS if part in whole):
            changed = changes(whole[part] or {}, there["organisation"].get(part, {}))
            self._hands_down |= not HANDED_DOWN.isdisjoint(changed)
            self._part(part, changed)
        places = self._places(wanted, there)
        for kind in OF_ORGANISATION:
            self._things(kind, "organisation", whole, there["organisation"], None)
        for path, workspace, found, place in places:
            for kind in OF_WORKSPACE:
                self._things(kind, path, workspace, found or {}, place)
            self._late(path, workspace, found, place)
        for kind in OF_ORGANISATION_LAST:
            self._things(kind, "organisation", whole, there["organisation"], None)

    def _part(self, part: str, changed: Thing) -> None:
        if changed:
            path, what = f"{ORGANISATION}/{part}", f"organisation {part}: {', '.join(changed)}"
            self._add("~", what, f"organisation.{part}", lambda: self._ground.remote.ask("PUT", path, changed))

    def _places(self, wanted: Thing, there: Thing) -> list[tuple[str, Thing, Thing | None, Thing]]:
        """Pair workspaces with those that are there; others are made before anything refers to them."""
        left = list(there["workspaces"])
        pairs: list[tuple[str, Thing, Thing | None, Thing]] = []
        for index, workspace in enumerate(listed(wanted, "workspaces")):
            path = f"workspaces[{index}]"
            found = match(workspace, left, ("slug", "name"))
            place: Thing = {"id": found["id"]} if found else {}
            if found:
                left.remove(found)
                self._rename(workspace, found)
            else:
                self._add("+", f"workspace {workspace['name']}", path, self._founding(workspace, place))
            pairs.append((path, workspace, found, place))
        for gone in left if self._prune and "workspaces" in wanted else []:
            if not gone["is_default"]:
                body: Thing = {"name": gone["name"], "force_delete": True}
                act = partial(self._ground.remote.ask, "DELETE", f"{WORKSPACES}/{gone['id']}", body)
                self._removals.append(Step("-", f"workspace {gone['name']}", "", act))
        return pairs

    def _founding(self, workspace: Thing, place: Thing) -> Callable[[], None]:
        body = {name: workspace[name] for name in WORKSPACE_FIELDS if workspace.get(name) is not None}
        if "defaults" in body:
            # There is no config yet that its keys could have by default.
            body["defaults"] = without(body["defaults"], "user_api_key_config")

        def act() -> None:
            made = self._ground.remote.ask("POST", WORKSPACES, body)
            place["id"] = made["id"]
            self._rename(workspace, made)

        return act

    def _late(self, path: str, workspace: Thing, found: Thing | None, place: Thing) -> None:
        """Change a workspace after what its defaults refer to."""
        fields = {name: workspace[name] for name in WORKSPACE_FIELDS if name in workspace}
        founded = {**fields, "defaults": without(fields.get("defaults") or {}, "user_api_key_config")}
        changed = self._differs(fields, found) if found else changes(self._now(fields), founded)
        may_differ = [name for name in HANDED_TO if self._hands_down and found and name in fields]
        if not (changed or may_differ):
            return

        def act() -> None:
            at, now = f"{WORKSPACES}/{place['id']}", changed
            if may_differ:
                # The organisation's own change came first, and may have given it other values than it had.
                now = self._differs(fields, self._ground.remote.ask("GET", at))
            if now:
                self._ground.remote.ask("PUT", at, self._now(now))

        named = ", ".join(dict.fromkeys([*changed, *may_differ]))
        self._add("~", f"workspace {workspace['name']}: {named}", path, act)

    def _differs(self, fields: Thing, found: Thing) -> Thing:
        """Give what of a workspace is to be other than it is there."""
        wanted = self._now(fields)
        if "security_settings" in wanted:
            # Every flag has a value: those that the file does not have stay.
            wanted["security_settings"] = {**found["security_settings"], **(wanted["security_settings"] or {})}
        changed = changes(wanted, found)
        if "settings" in changed:
            # What is left out of them stays: what the file does not have is taken away.
            gone = dict.fromkeys(cast("Thing", found.get("settings") or {}))
            changed["settings"] = {**gone, **cast("Thing", changed["settings"] or {})}
        return changed

    def _things(self, kind: Kind, above: str, wanted: Thing, there: Thing, place: Thing | None) -> None:
        """Compare the things of a kind in one place; a kind that is not written stays as it is."""
        if kind.name not in wanted:
            return
        left = list(listed(there, kind.name))
        inside = f"{wanted['name']} / " if place is not None else ""
        for index, thing in enumerate(listed(wanted, kind.name)):
            path, what = f"{above}.{kind.name}[{index}]", f"{inside}{kind.name} {kind.called(thing)}"
            found = match(thing, left, kind.identified_by(thing))
            for name in kind.secret:
                self._problems += strangers(f"{path}.{name}", thing.get(name), (found or {}).get(name))
            if found is None:
                self._make(kind, path, what, thing, place)
                continue
            left.remove(found)
            self._rename(thing, found)
            self._change(kind, path, what, thing, found, place)
        for gone in left if self._prune else []:
            if not kind.stays(self._ground, gone):
                act = partial(kind.remove, self._ground, place, gone)
                self._removals.append(Step("-", f"{inside}{kind.name} {kind.called(gone)}", "", act))

    def _make(self, kind: Kind, path: str, what: str, thing: Thing, place: Thing | None) -> None:
        if kind.is_needless(self._ground, thing):
            return
        if (email := thing.get(kind.person)) and email not in self._ground.ids:
            problem = Problem(f"{path}.{kind.person}", f"{email!r} is no user here; hint: organisation.invites")
            self._problems.append(problem)

        def act() -> None:
            made = kind.make(self._ground, place, self._now(thing))
            self._rename(thing, made)
            for name, text in (("key", made.get("key")), ("link", made.get("invite_link"))):
                if text:
                    self.texts.append((name, what, text))

        self._add("+", what, path, act)

    def _change(self, kind: Kind, path: str, what: str, thing: Thing, found: Thing, place: Thing | None) -> None:
        wanted = cast("Thing", renamed(thing, self._renamed))
        chosen = cast("Thing", renamed(kind.chosen(wanted), self._ground.named))
        other = changes(chosen, found)
        why = "is chosen once, and is another there; hint: delete it first"
        self._problems += [Problem(f"{path}.{name}", why) for name in other]
        if changed := kind.compared(self._ground, found, kind.differs(wanted, found, prune=self._prune)):

            def act() -> None:
                kind.change(self._ground, place, found, self._now(changed))

            self._add("~", f"{what}: {', '.join(changed)}", path, act)

    def _rename(self, thing: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        if thing.get("slug") and found.get("slug") and thing["slug"] != found["slug"]:
            self._renamed[thing["slug"]] = found["slug"]

    def _now(self, body: Thing) -> Thing:
        return cast("Thing", renamed(body, self._renamed))

    def _add(self, sign: str, what: str, path: str, act: Callable[[], Any]) -> None:
        self.steps.append(Step(sign, what, path, act))


def _misshapen(document: Thing) -> Iterator[Problem]:
    """Tell all that is wrong with the shape of a document, each with its place."""
    if document.get("version") != VERSION:
        yield Problem("version", f"must be {VERSION}")
    yield from unknown("", document, TOP)
    whole: object = document.get("organisation") or {}
    yield from unknown("organisation", whole, OF_ALL)
    if isinstance(whole, dict):
        for kind in (*OF_ORGANISATION, *OF_ORGANISATION_LAST):
            yield from _misshapen_things(f"organisation.{kind.name}", cast("Thing", whole).get(kind.name), kind)
    for path, workspace in _rows("workspaces", document.get("workspaces")):
        yield from unknown(path, workspace, OF_EACH)
        if isinstance(workspace, dict):
            if not cast("Thing", workspace).get("name"):
                yield Problem(f"{path}.name", "is needed")
            yield from _two_defaults(path, cast("Thing", workspace))
            for kind in OF_WORKSPACE:
                yield from _misshapen_things(f"{path}.{kind.name}", cast("Thing", workspace).get(kind.name), kind)
    if not isinstance(document.get("workspaces") or [], list):
        yield Problem("workspaces", "must be a list")


def _two_defaults(path: str, workspace: Thing) -> Iterator[Problem]:
    """Tell of a second default among the configs of a workspace: each would be taken from the other again and again."""
    rows = [
        (place, cast("Thing", row))
        for place, row in _rows(f"{path}.configs", workspace.get("configs"))
        if isinstance(row, dict)
    ]
    first, *others = [(place, row) for place, row in rows if row.get("is_default")] or [("", {})]
    for place, row in others:
        beside = f"{first[0]} ({first[1].get('name')!r})"
        yield Problem(
            f"{place}.is_default", f"makes {row.get('name')!r} the default beside {beside}: a workspace has one"
        )


def _misshapen_things(path: str, value: object, kind: Kind) -> Iterator[Problem]:
    if not isinstance(value or [], list):
        yield Problem(path, "must be a list")
    for place, thing in _rows(path, value):
        yield from unknown(place, thing, kind.known)
        if isinstance(thing, dict) and not any(cast("Thing", thing).get(name) for name in kind.named_by):
            yield Problem(f"{place}.{kind.named_by[-1]}", "is needed")


def _rows(path: str, value: object) -> Iterator[tuple[str, object]]:
    rows = cast("list[object]", value) if isinstance(value, list) else []
    yield from ((f"{path}[{index}]", row) for index, row in enumerate(rows))
