"""Integrations as a state holds them: with what is said of their models, and of the workspaces that may use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.declarative.document import Thing, bare, changes, listed, masks, without
from penstock.declarative.kinds import Ground, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.remote import Remote


# What models without credentials of their own are sent.
GIVEN = ("key", "configurations")


class Integrations(Kind):
    """Credentials, with what is said of their models, and of the workspaces that may use them."""

    name, path = "integrations", "/v1/integrations"
    own = ("name", "key", "description", "configurations", "secret_mappings", "pricing_adjustments", "tags")
    below = ("allow_all_models", "models", "global_workspace_access", "workspaces")
    fields = (*own, *below)
    fixed = ("slug", "ai_provider_id")
    secret = ("key", "configurations", "models")

    def inside(self, place: Thing | None) -> str:
        """Read either those of the organisation, or one workspace's own."""
        return f"?type=workspace&workspace_id={place['id']}" if place else "?type=organisation"

    def written(self, ground: Ground, row: Thing) -> Thing:
        """Read the whole of one, without the models of which only the public list speaks."""
        remote, path = ground.remote, f"{self.path}/{row['id']}"
        whole = remote.ask("GET", path)
        shown = super().written(ground, {**whole, "key": whole["masked_key"] or ""})
        said = [one for one in remote.ask("GET", f"{path}/models")["models"] if one["created_at"]]
        shown["models"] = [self._model(ground, row["ai_provider_id"], one) for one in said]
        if row["workspace_id"]:
            return without(shown, "global_workspace_access")
        places = remote.ask("GET", f"{path}/workspaces")["workspaces"]
        names = ("id", "enabled", "usage_limits", "rate_limits")
        # What is said of archived ones is of no use, and they are in no state.
        here = set(ground.slugs.values())
        shown["workspaces"] = [{name: bare(one[name]) for name in names} for one in places if one["id"] in here]
        return shown

    def _model(self, ground: Ground, provider: str, row: Thing) -> Thing:
        shown = without(row, "created_at", "last_updated_at")
        # What the public list says is nobody's choice.
        path = f"/v1/model-configs/pricing/{provider}/{quote(row['slug'], safe='')}"
        usual = row["is_custom"] or not row["pricing_config"] or ground.remote.find(path) != row["pricing_config"]
        return shown if usual else without(shown, "pricing_config")

    def differs(self, thing: Mapping[str, Any], there: Mapping[str, Any], *, prune: bool) -> Thing:
        """Of models and workspaces give those that differ."""
        rows = {name: self._rows(name, thing, there, prune=prune) for name in ("models", "workspaces")}
        plain = super().differs(without(thing, *rows), there, prune=prune)
        if _are_moved(rows["models"], listed(there, "models")):
            # Who gives the credentials may send them there.
            plain |= {name: thing[name] for name in GIVEN if thing.get(name) and not masks(thing[name])}
        return {**plain, **{name: found for name, found in rows.items() if found}}

    def _rows(self, name: str, thing: Mapping[str, Any], there: Mapping[str, Any], *, prune: bool) -> list[Thing]:
        key = "slug" if name == "models" else "id"
        known = {row[key]: row for row in listed(there, name)}
        wanted = listed(thing, name)
        differing = [row for row in wanted if changes(row, known.get(row[key], {}))]
        gone = [row for row in known.values() if row[key] not in {row[key] for row in wanted}]
        # Only custom models can go; of others something is said, or nothing.
        gone = [{**row, "gone": True} for row in gone if row.get("is_custom", True)]
        return [*differing, *(gone if prune and name in thing else [])]

    def make(self, ground: Ground, place: Thing | None, thing: Thing) -> Thing:
        """Make one; providers are made of it where they are written."""
        known = {name: thing[name] for name in (*self.own, *self.fixed) if thing.get(name) is not None}
        made = ground.remote.ask("POST", self.path, {**known, "create_default_provider": False, **self.home(place)})
        self.change(ground, place, made, {name: thing[name] for name in self.below if thing.get(name) is not None})
        return made

    def change(self, ground: Ground, place: Thing | None, there: Thing, changed: Thing) -> None:
        """Send each part to where it belongs."""
        path, remote = self.at(there, place), ground.remote
        if own := {name: changed[name] for name in self.own if name in changed}:
            remote.ask("PUT", path, own)
        self._change_models(remote, f"{path}/models", changed)
        self._change_workspaces(remote, f"{path}/workspaces", there, changed)

    def _change_models(self, remote: Remote, path: str, changed: Thing) -> None:
        models = listed(changed, "models")
        if gone := [one["slug"] for one in models if one.get("gone")]:
            remote.ask("DELETE", path, {"models": gone})
        kept = [{name: value for name, value in one.items() if value != {}} for one in models if not one.get("gone")]
        if kept or "allow_all_models" in changed:
            rule = {"allow_all_models": changed["allow_all_models"]} if "allow_all_models" in changed else {}
            remote.ask("PUT", path, {"models": kept, **rule})

    def _change_workspaces(self, remote: Remote, path: str, there: Thing, changed: Thing) -> None:
        places = listed(changed, "workspaces")
        body: Thing = {"create_default_provider": False}
        if any(one.get("gone") for one in places):
            # Nothing can be unsaid of a single one.
            body["override_existing_workspace_access"] = True
            said = {one["id"]: one for one in [*listed(there, "workspaces"), *places]}
            places = [one for one in said.values() if not one.get("gone")]
        if access := changed.get("global_workspace_access"):
            body |= {
                "global_workspace_access": without(access, "create_default_provider"),
                "create_default_provider": access.get("create_default_provider", False),
            }
        if places or len(body) > 1:
            rows = [{**one, "create_default_provider": False} for one in places]
            remote.ask("PUT", path, {**body, "workspaces": rows})


def _are_moved(models: list[Thing], there: list[Thing]) -> bool:
    """Whether a model is to be at a host where it was not."""
    known = {row["slug"]: _host(row) for row in there}
    return any(_host(row) not in {None, known.get(row["slug"])} for row in models)


def _host(model: Thing) -> str | None:
    own: Thing = model.get("configurations") or {}
    return own.get("custom_host")
