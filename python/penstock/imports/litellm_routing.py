"""Routing of LiteLLM as one config: a condition for each model name, load balancing of its rows, and fallbacks."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from penstock.imports.litellm_deployment import Deployment

JsonObject = dict[str, Any]

# Maximum number of targets at the root of a conditional config, as in the engine.
MAX_ROOT_TARGETS = 1000
# Maximum number of targets below each root target, as in the engine.
MAX_TARGETS_BELOW = 50
# LiteLLM follows chains of fallbacks only up to this length.
MAX_FALLBACK_DEPTH = 5
# Statuses with which providers report that a prompt is too long.
CONTEXT_STATUSES = [400, 413]
# Status with which providers report that the content of a prompt is not allowed.
CONTENT_STATUSES = [400]
OTHER_ERROR_STATUSES = [401, 403, 404, 408, 409, 429, 500, 502, 503, 504, 529]
REGEX_SPECIAL = frozenset("\\.+?()|[]{}^$*")
# Name of the target for models that the config does not list. No saved provider has this slug, so it fails.
UNKNOWN_MODEL = "model-is-not-in-the-imported-config"
WEIGHT_FIELDS = ("weight", "rpm", "tpm")


class Fallbacks(NamedTuple):
    """Model names that are tried after a model, by kind of error."""

    general: Mapping[str, Sequence[str]]
    context_window: Mapping[str, Sequence[str]]
    content_policy: Mapping[str, Sequence[str]]
    default: Sequence[str] = ()

    def fallbacks_for_every_error(self, name: str) -> Sequence[str]:
        """Returns the fallbacks of a model for all errors."""
        return self.general.get(name) or self.general.get("*") or self.default


class ModelRouting:
    """Builds routing configs for the models of a LiteLLM configuration, from their rows, aliases and fallbacks."""

    def __init__(
        self,
        deployments: Iterable[Deployment],
        fallbacks: Fallbacks,
        aliases: Mapping[str, str],
        root_options: JsonObject,
    ) -> None:
        """Groups the rows by model name. `root_options` are options of all targets."""
        self._fallbacks, self._root_options = fallbacks, root_options
        self.groups: dict[str, list[Deployment]] = {}
        for deployment in deployments:
            if self._can_route(deployment):
                self.groups.setdefault(deployment.model_name, []).append(deployment)
        self.aliases = {alias: name for alias, name in aliases.items() if self.is_known(name)}

    def is_known(self, name: str) -> bool:
        """Returns true if a row has this model name, or a pattern that it matches."""
        return name in self.groups or self.find_pattern(name) is not None

    def find_pattern(self, name: str) -> str | None:
        """Returns the most specific pattern with `*` that matches a model name without rows of its own."""
        if name in self.groups or "*" in name or not name.isprintable():
            return None
        patterns = (pattern for pattern in self._patterns(self.groups) if _match_pattern(pattern, name) is not None)
        return next(patterns, None)

    @staticmethod
    def _patterns(names: Iterable[str]) -> list[str]:
        # LiteLLM tries the most specific pattern first.
        return sorted((name for name in names if "*" in name), key=len, reverse=True)

    def _rows_of(self, name: str) -> list[Deployment]:
        """Returns the rows of a model. Rows of a pattern are adapted: they send the same upstream name as LiteLLM."""
        pattern = self.find_pattern(name)
        if pattern is None:
            return self.groups[name]
        matched = _match_pattern(pattern, name) or ""
        return [_with_model(row, row.upstream_model.replace("*", matched)) for row in self.groups[pattern]]

    def _can_route(self, item: Deployment) -> bool:
        """Returns true if a config can express the row. A config can remove the beginning of a model name, but not add
        one.
        """
        if len({*(self.groups), item.model_name}) >= MAX_ROOT_TARGETS:
            item.node.report_unsupported(f"a config has at most {MAX_ROOT_TARGETS - 1} models")
            return False
        if not item.has_wildcard or item.model_name == item.upstream_model:
            return True
        prefix = item.model_name.removesuffix(item.upstream_model)
        if prefix != item.model_name and "*" not in prefix:
            item.target["drop_model_prefix"] = prefix
            return True
        hint = f"send `@{item.provider}/<model>` as model, without this config" if item.provider else "list its models"
        item.node.report_manual(f"a config can only remove the beginning of a model name with `*`; {hint}")
        return False

    def build_config(self, allowed: Collection[str] | None = None) -> JsonObject:
        """Returns the config for these model names and aliases; `None` means all."""
        names = [name for name in self.groups if allowed is None or name in allowed or self._aliases_in(name, allowed)]
        # Names of aliases and of `allowed` that may have no rows, but match a pattern.
        pattern_models = [name for name in self.aliases.values() if allowed is None or self._aliases_in(name, allowed)]
        pattern_models += sorted(name for name in allowed or () if name not in self.aliases)
        exact = dict.fromkeys(
            [*(name for name in names if "*" not in name), *filter(self.find_pattern, pattern_models)]
        )
        listed = [*exact, *self._patterns(names)]
        conditions = [{"query": {"params.model": self._query(name, allowed)}, "then": name} for name in listed]
        targets = [{"name": name, **self._build_target(name)} for name in listed]
        return {
            "strategy": {"mode": "conditional", "conditions": conditions, "default": UNKNOWN_MODEL},
            "targets": [*targets, {"name": UNKNOWN_MODEL, "provider": f"@{UNKNOWN_MODEL}"}],
            **self._root_options,
        }

    def _aliases_in(self, name: str, allowed: Collection[str]) -> bool:
        return any(alias in allowed for alias, target_name in self.aliases.items() if target_name == name)

    def _query(self, name: str, allowed: Collection[str] | None) -> object:
        if "*" in name:
            escaped = "".join(f"\\{item}" if item in REGEX_SPECIAL and item != "*" else item for item in name)
            return {"$regex": f"^{escaped.replace('*', '.*')}$"}
        names = [
            name,
            *(alias for alias, target_name in self.aliases.items() if target_name == name and alias not in self.groups),
        ]
        remaining = [name for name in names if allowed is None or name in allowed] or names
        return remaining[0] if len(remaining) == 1 else {"$in": remaining}

    def _build_target(self, name: str) -> JsonObject:
        for depth in range(MAX_FALLBACK_DEPTH, -1, -1):
            target = self._with_fallbacks(name, frozenset(), depth)
            if sum(1 for _ in _iter_below(target)) <= MAX_TARGETS_BELOW:
                return target
        rows = self._rows_of(name)
        for item in rows[MAX_TARGETS_BELOW - 1 :]:
            item.node.report_unsupported(f"a model has at most {MAX_TARGETS_BELOW - 1} rows")
        return build_group(rows[: MAX_TARGETS_BELOW - 1])

    def _with_fallbacks(self, name: str, above: frozenset[str], depth: int) -> JsonObject:
        """Returns the target of a model with its fallbacks. Their own fallbacks are nested in them, `depth` levels in
        all.
        """
        base = build_group(self._rows_of(name))
        if depth == 0:
            return base
        visited_models = above | {name}

        def follow(names: Iterable[str]) -> list[JsonObject]:
            known = [self.aliases.get(fromkey, fromkey) for fromkey in dict.fromkeys(names)]
            good = [item for item in known if self.is_known(item) and item not in visited_models]
            return [self._with_fallbacks(item, visited_models, depth - 1) for item in good]

        context = self._fallbacks.context_window.get(name, ())
        content = self._fallbacks.content_policy.get(name, ())
        special = follow([*context, *content])
        target = base
        if others := follow(self._fallbacks.fallbacks_for_every_error(name)):
            strategy: JsonObject = {"mode": "fallback"}
            strategy |= {"on_status_codes": OTHER_ERROR_STATUSES} if special else {}
            target = {"strategy": strategy, "targets": [base, *others]}
        if special:
            statuses = CONTEXT_STATUSES if context else CONTENT_STATUSES
            strategy = {"mode": "fallback", "on_status_codes": statuses}
            target = {"strategy": strategy, "targets": [target, *special]}
        return target


def build_group(rows: Sequence[Deployment]) -> JsonObject:
    """Returns the target for the rows of one model: load balancing. If the rows have different orders, those of a
    higher order are fallbacks.
    """
    orders = sorted({row.order for row in rows})
    tiers = [_balance([row for row in rows if row.order == order]) for order in orders]
    return tiers[0] if len(tiers) == 1 else {"strategy": {"mode": "fallback"}, "targets": tiers}


def _balance(rows: Sequence[Deployment]) -> JsonObject:
    targets = [_target_of(row) for row in rows]
    if len(targets) == 1:
        return targets[0]
    weighed_by = next((name for name in WEIGHT_FIELDS if any(row.weights.get(name) for row in rows)), None)
    if weighed_by:
        targets = [{**item, "weight": row.weights.get(weighed_by, 0)} for item, row in zip(targets, rows, strict=True)]
    return {"strategy": {"mode": "loadbalance"}, "targets": targets}


def _match_pattern(pattern: str, name: str) -> str | None:
    """Returns the part of a name for which `*` stands; `None` if the name does not match the pattern. The pattern must
    have exactly one `*`.
    """
    before, star, after = pattern.partition("*")
    is_match = star and len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after)
    return name[len(before) : len(name) - len(after)] if is_match and "*" not in after else None


def _with_model(row: Deployment, model: str) -> Deployment:
    """Returns a copy of a pattern's row that sends this model name."""
    target = {name: value for name, value in row.target.items() if name != "drop_model_prefix"}
    target["override_params"] = {**target.get("override_params", {}), "model": model}
    return row._replace(target=target)


def _target_of(row: Deployment) -> JsonObject:
    target = deepcopy(row.target)
    if row.retries is not None:
        target["retry"] = {"attempts": row.retries}
    return target


def _iter_below(target: JsonObject) -> Iterator[JsonObject]:
    for item in target.get("targets", ()):
        yield item
        yield from _iter_below(item)
