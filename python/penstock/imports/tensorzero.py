"""Importer of TensorZero. Models become targets. Functions become load balancing of their variants, and variants with
templates become prompts.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.imports.findings import Ledger, Node
from penstock.imports.litellm_routing import UNKNOWN_MODEL
from penstock.imports.output import ImportedState
from penstock.imports.state import StateBuilder, unused_slug
from penstock.imports.tensorzero_models import read_provider, read_shorthand, read_timeouts
from penstock.imports.tensorzero_templates import to_mustache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.imports.source import Source

JsonObject = dict[str, Any]

WORKSPACE_SLUG, WORKSPACE_NAME, CONFIG_SLUG = "tensorzero", "TensorZero", "tensorzero"
MANUAL_SECTIONS = {
    "gateway": "set the address, logs and authentication in penstock.toml, see settings.md",
    "clickhouse": "logs are stored without ClickHouse, see logs.md",
    "postgres": "set store.url in penstock.toml",
    "object_storage": "set files.store in penstock.toml",
    "metrics": "send feedback to /v1/feedback",
    "evaluations": "evaluations are not imported",
    "optimizers": "optimizers are not imported",
    "rate_limiting": "create rate limits policies, see policies.md",
    "provider_types": "set the options of the integrations",
    "autopilot": "not imported",
}
PARAMETERS = frozenset(
    [
        "temperature",
        "top_p",
        "max_tokens",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "reasoning_effort",
        "service_tier",
        "verbosity",
        "thinking_budget_tokens",
    ]
)
PARAMETER_NAMES = {"stop_sequences": "stop"}
ROLES = ("system", "user", "assistant")
MAX_ATTEMPTS, MAX_ROOT_TARGETS = 5, 999


def import_tensorzero(sources: Sequence[Source], files: Mapping[str, str]) -> ImportedState:
    """Returns the state document and the findings. `files` are the contents of templates and schemas by their names."""
    ledger = Ledger(sources)
    return ImportedState(_Importer(ledger.roots(), files).run(), ledger.findings())


class _Importer:
    """Reads the sections of all files, which together are one configuration."""

    def __init__(self, roots: Sequence[Node], files: Mapping[str, str]) -> None:
        self._roots, self._files = roots, files
        self._state = StateBuilder()
        self._workspace = self._state.add_workspace(WORKSPACE_SLUG, WORKSPACE_NAME)
        self._models: dict[str, JsonObject] = {}
        self._tools: dict[str, JsonObject] = {}
        self._conditions: list[JsonObject] = []
        self._targets: list[JsonObject] = []

    def run(self) -> JsonObject:
        for model in self._tables("models"):
            if target := self._read_model(model):
                self._models[model.name] = target
                self._add_condition([f"tensorzero::model_name::{model.name}", model.name], target, model)
        for model in self._tables("embedding_models"):
            if target := self._read_model(model):
                self._add_condition([f"tensorzero::embedding_model_name::{model.name}", model.name], target, model)
        for tool in self._tables("tools"):
            self._read_tool(tool)
        for function in self._tables("functions"):
            self._read_function(function)
        for section in (field for root in self._roots for field in root.fields() if field.name in MANUAL_SECTIONS):
            section.report_manual(MANUAL_SECTIONS[section.name])
        if self._targets:
            strategy = {"mode": "conditional", "conditions": self._conditions, "default": UNKNOWN_MODEL}
            targets = [*self._targets, {"name": UNKNOWN_MODEL, "provider": f"@{UNKNOWN_MODEL}"}]
            row = {
                "slug": CONFIG_SLUG,
                "name": "TensorZero models",
                "config": {"strategy": strategy, "targets": targets},
            }
            self._workspace["configs"].append(row)
        return self._state.build()

    def _tables(self, section: str) -> Iterator[Node]:
        for root in self._roots:
            if section_node := root.child(section):
                for item in section_node.fields():
                    if item.is_mapping and item.name.isprintable():
                        yield item
                    else:
                        item.report_unsupported("must be a table")

    def _add_condition(self, names: Sequence[str], target: JsonObject, node: Node) -> None:
        used = {target["name"] for target in self._targets}
        if len(self._targets) >= MAX_ROOT_TARGETS:
            node.report_unsupported(f"a config has at most {MAX_ROOT_TARGETS} models")
            return
        name = names[0]
        if name not in used:
            self._conditions.append({"query": {"params.model": {"$in": list(names)}}, "then": name})
            self._targets.append({"name": name, **deepcopy(target)})

    def _read_model(self, model: Node) -> JsonObject | None:
        routing, providers = model.child("routing"), model.child("providers")
        if routing is None or providers is None or not providers.is_mapping:
            model.report_unsupported("a model needs routing and providers")
            return None
        targets: dict[str, JsonObject] = {}
        for provider in providers.fields():
            if target := read_provider(provider, self._state):
                targets[provider.name] = target
        json_objects: list[JsonObject] = []
        for item in routing.items():
            name = item.text() or ""
            if name in targets:
                item.report_exact("order of a fallback")
                json_objects.append(targets[name])
            elif not providers.child(name):
                item.report_unsupported("is no provider of the model")
            else:
                item.report_manual("the provider is not supported, so it is left out")
        timeout = read_timeouts(model)
        for name in ("skip_relay", "namespace"):
            if field := model.child(name):
                field.report_approximate("has no equivalent and needs none")
        if not json_objects:
            model.report_manual("none of its providers was imported, so the model is left out")
            return None
        target = (
            json_objects[0] if len(json_objects) == 1 else {"strategy": {"mode": "fallback"}, "targets": json_objects}
        )
        return {**target, **({"request_timeout": timeout} if timeout and "request_timeout" not in target else {})}

    def _read_tool(self, tool: Node) -> None:
        parameters = self._read_json_file(tool.child("parameters"))
        name, description, strict = (tool.child(field) for field in ("name", "description", "strict"))
        function: JsonObject = {"name": (name.text() if name else None) or tool.name}
        if description and (text := description.text()):
            function["description"] = text
        if strict and (flag := strict.flag()) is not None:
            function["strict"] = flag
        if parameters is None:
            tool.report_manual("its schema cannot be read; add the tool to default_params of the config")
            return
        for field in (name, description, strict):
            if field:
                field.report_exact("default_params.tools of the functions")
        self._tools[tool.name] = {"type": "function", "function": {**function, "parameters": parameters}}

    def _read_json_file(self, field: Node | None) -> JsonObject | None:
        """Returns the schema in a file that a field names."""
        name = field.child("path") if field and field.is_mapping else field
        content = self._files.get(name.value) if name and isinstance(name.value, str) else None
        if name is None or content is None:
            return None
        try:
            schema = msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return None
        name.report_exact("content of the file")
        return schema

    def _read_function(self, function: Node) -> None:
        common = self._function_parameters(function)
        variants = function.child("variants")
        weights = _read_weights(function.child("experimentation"))
        weighted: list[tuple[str, JsonObject, float | None]] = []
        prompts = len(self._workspace["prompts"])
        for variant in variants.fields() if variants else ():
            if target := self._read_variant(function, variant, common):
                own = variant.child("weight")
                weight = own.number() if own else None
                if own and weight is not None:
                    own.report_exact("weight of load balancing")
                weighted.append((variant.name, target, weights.get(variant.name, 0) if weights else weight))
        if not weighted:
            if len(self._workspace["prompts"]) == prompts:
                function.report_manual("none of its variants was imported, so the function is left out")
            return
        targets = [target for _, target, _ in weighted]
        if any(weight for _, _, weight in weighted):
            targets = [{**target, "weight": weight or 0} for _, target, weight in weighted]
        item = targets[0] if len(targets) == 1 else {"strategy": {"mode": "loadbalance"}, "targets": targets}
        item = {name: value for name, value in item.items() if name != "weight"}
        self._add_condition([f"tensorzero::function_name::{function.name}"], item, function)

    def _function_parameters(self, function: Node) -> JsonObject:
        """Returns the request parameters that a function sets for all of its variants."""
        parameters: JsonObject = {}
        for field in function.fields():
            match field.name:
                case "type":
                    field.report_exact()
                case "description":
                    field.report_approximate("information only")
                case "system_schema" | "user_schema" | "assistant_schema" | "schemas":
                    field.report_approximate("arguments are not checked")
                case "output_schema":
                    if schema := self._read_json_file(field):
                        parameters["output_schema"] = schema
                    else:
                        field.report_manual(
                            "the file cannot be read; set response_format in default_params of the config"
                        )
                case "tools":
                    self._read_tool_names(field, parameters)
                case "tool_choice":
                    specific = field.child("specific")
                    name = specific.text() if specific else None
                    fields = {"type": "function", "function": {"name": name}} if name else field.value
                    parameters["tool_choice"] = fields
                    field.report_exact("default_params")
                case "parallel_tool_calls":
                    parameters["parallel_tool_calls"] = field.value
                    field.report_exact("default_params")
                case _:
                    pass
        return parameters

    def _read_tool_names(self, field: Node, parameters: JsonObject) -> None:
        tools: list[JsonObject] = []
        for item in field.items():
            name = item.text() or ""
            if name in self._tools:
                item.report_exact("default_params.tools")
                tools.append(self._tools[name])
            else:
                item.report_manual("the tool was not imported; add it to default_params of the config")
        if tools:
            parameters["tools"] = tools

    def _read_variant(self, function: Node, variant: Node, common: JsonObject) -> JsonObject | None:
        kind = variant.child("type")
        if kind and kind.value != "chat_completion":
            variant.report_unsupported("only variants of the type chat_completion have an equivalent")
            return None
        if kind:
            kind.report_exact()
        name_field = variant.child("model")
        model = name_field.text() if name_field else None
        target = (self._models.get(model) or read_shorthand(model, self._state)) if model else None
        if name_field is None or target is None:
            variant.report_manual("its model was not imported, so the variant is left out")
            return None
        name_field.report_exact()
        parameters = {name: value for name, value in common.items() if name != "output_schema"}
        parameters |= _read_parameters(variant)
        if response_format := _response_format(variant.child("json_mode"), common.get("output_schema"), function.name):
            parameters["response_format"] = response_format
        templates = self._read_templates(variant)
        target = _with_options(target, variant, parameters)
        if templates is None:
            return target
        if not templates:
            variant.report_manual("the variant is left out, because a template cannot be converted")
            return None
        self._add_prompt(function.name, variant.name, templates, _first_leaf(target), parameters)
        if weight := variant.child("weight"):
            weight.report_manual("a prompt has no weight; clients choose the prompt")
        return None

    def _read_templates(self, variant: Node) -> dict[str, str] | None:
        """Returns the templates of a variant by role, converted to Mustache. Returns `None` if it has none, and an
        empty mapping if one cannot be converted.
        """
        fields = {role: template for role in ROLES if (template := variant.child(f"{role}_template"))}
        for item in templates.fields() if (templates := variant.child("templates")) else ():
            fields[item.name] = item
        if not fields:
            return None
        converted: dict[str, str] = {}
        for role, field in fields.items():
            name = field.child("path") if field.is_mapping else field
            content = self._files.get(name.value) if name and isinstance(name.value, str) else None
            text = to_mustache(content) if content is not None else None
            if text is None or role not in ROLES:
                field.report_manual("the template cannot be converted; create the prompt by hand, see prompts.md")
                return {}
            field.report_approximate("a prompt: call it by its slug, and send the arguments as variables")
            converted[role] = text
        return converted

    def _add_prompt(
        self, function: str, variant: str, templates: Mapping[str, str], target: JsonObject, parameters: JsonObject
    ) -> None:
        messages = [{"role": role, "content": templates[role]} for role in ROLES if role in templates]
        if "user" not in templates:
            messages.append({"role": "user", "content": "{{input}}"})
        used = [row["slug"] for row in self._workspace["prompts"]]
        row: JsonObject = {
            "slug": unused_slug(f"{function}-{variant}", used),
            "name": f"{function} {variant}"[:255],
            "string": msgspec.json.encode(messages).decode(),
            "virtual_key": target["provider"].removeprefix("@"),
            "model": target["override_params"]["model"],
            "parameters": {name: value for name, value in parameters.items() if name not in {"tools", "tool_choice"}},
        }
        row |= {name: parameters[name] for name in ("tools", "tool_choice") if name in parameters}
        self._workspace["prompts"].append(row)


def _with_options(model: JsonObject, variant: Node, parameters: JsonObject) -> JsonObject:
    """Returns the target of a model with the options of a variant."""
    target = deepcopy(model)
    if parameters:
        target["default_params"] = {**target.get("default_params", {}), **parameters}
    if (retries := variant.child("retries")) and (attempts := _read_retries(retries)):
        target["retry"] = {"attempts": attempts}
    if timeout := read_timeouts(variant):
        target["request_timeout"] = timeout
    for name, message in (("extra_body", "override_params"), ("extra_headers", "custom_headers")):
        if field := variant.child(name):
            field.report_manual(f"set {message} of the target or the integration")
    return target


def _first_leaf(target: JsonObject) -> JsonObject:
    return _first_leaf(target["targets"][0]) if "targets" in target else target


def _read_parameters(variant: Node) -> JsonObject:
    parameters: JsonObject = {}
    for field in variant.fields():
        if field.name in PARAMETERS or field.name in PARAMETER_NAMES:
            parameters[PARAMETER_NAMES.get(field.name, field.name)] = field.value
            field.report_exact("default_params: used if the client does not send it")
    return parameters


def _response_format(mode: Node | None, schema: JsonObject | None, name: str) -> JsonObject | None:
    if mode:
        if mode.value in {"strict", "on", "off"}:
            mode.report_exact("default_params.response_format")
        else:
            mode.report_approximate("default_params.response_format with the schema")
    if schema is None or (mode and mode.value == "off"):
        return None
    if mode and mode.value == "on":
        return {"type": "json_object"}
    label = "".join(item if item.isalnum() or item in "_-" else "_" for item in name)[:64] or "output"
    return {"type": "json_schema", "json_schema": {"name": label, "schema": schema, "strict": True}}


def _read_retries(node: Node) -> int | None:
    field, delay = node.child("num_retries"), node.child("max_delay_s")
    number = field.number() if field else None
    if delay:
        delay.report_manual("set routing.retry_backoff_ms in penstock.toml")
    if field is None or number is None:
        return None
    if number > MAX_ATTEMPTS:
        field.report_approximate(f"retry.attempts: at most {MAX_ATTEMPTS}")
    else:
        field.report_exact("retry.attempts")
    return min(int(number), MAX_ATTEMPTS)


def _read_weights(experimentation: Node | None) -> dict[str, float]:
    """Returns the weights of the variants that an experiment names; empty if there is no experiment."""
    weights: dict[str, float] = {}
    for field in experimentation.fields() if experimentation else ():
        if field.name == "type":
            if field.value in {"static", "static_weights", "uniform"}:
                field.report_exact("load balancing")
            else:
                field.report_approximate("load balancing with equal weights; weights do not change by themselves")
        elif field.name == "candidate_variants" and field.is_mapping:
            for item in field.fields():
                if (number := item.number()) is not None:
                    item.report_exact("weight of load balancing")
                    weights[item.name] = number
        elif field.name == "candidate_variants":
            weights |= dict.fromkeys(field.texts(), 1.0)
            field.report_exact("load balancing with equal weights")
        elif field.name == "fallback_variants":
            field.report_manual("add a fallback to the config")
        else:
            field.report_manual("load balancing has weights only")
    return weights
