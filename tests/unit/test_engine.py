"""JSON Schema of configs for editors. It accepts and rejects the same configs as the engine's parser."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import msgspec

from penstock import engine

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET_LIMITS = (100, 1000, 50)
# Values that a user may write by mistake.
MISTAKEN_VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    0.5,
    1,
    5.0,
    60,
    200,
    700,
    30_000,
    1e9,
    "",
    "x",
    "a\nb",
    "metadata.a",
]
MISTAKEN_VALUES += [
    [],
    [1],
    ["x"],
    [{}],
    {},
    {"a": 1},
    {"mode": "simple"},
    {"attempts": 1},
    {"query": {}, "then": "t0"},
]


class ConfigGenerator:
    """Generates random configs, mostly valid, with an occasional mistake."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - the same configs each time, and nobody's secret

    def choose(self, *values: object) -> object:
        return self.random.choice(values)

    def make_object(self, **keys: Callable[[], Any]) -> dict[str, Any]:
        written = {key: write() for key, write in keys.items() if self.random.random() < 0.6}
        if written and self.random.random() < 0.01:
            written[self.random.choice([*written, "odd", "mode"])] = self.random.choice(MISTAKEN_VALUES)
        return written

    def make_config(self, depth: int) -> dict[str, Any]:
        count = self.random.randrange(4) if depth else 0
        targets = [{"name": f"t{at}", **self.make_config(depth - 1)} for at in range(count)]
        config = self.make_features()
        if targets or self.random.random() < 0.05:
            config["targets"] = targets
        if targets or self.random.random() < 0.1:
            config["strategy"] = self.make_strategy(max(count, 1))
        if self.random.random() < 0.03:
            del config[self.random.choice([*config])]
        return config

    def make_strategy(self, count: int) -> dict[str, Any]:
        def target_name() -> str:
            return f"t{self.random.randrange(count)}"

        strategy = self.make_object(on_status_codes=self.make_status_codes, cb_config=self.make_circuit_breaker)
        strategy["mode"] = mode = self.choose("single", "fallback", "loadbalance", "conditional")
        if (mode == "conditional") == (self.random.random() < 0.95):
            strategy |= self.make_object(conditions=lambda: [{"query": self.make_query(2), "then": target_name()}])
            strategy["default"] = target_name()
        if (mode == "loadbalance") == (self.random.random() < 0.95):
            strategy |= self.make_object(**{str(self.choose("sticky", "sticky_session")): self.make_sticky_session})
        if self.random.random() < 0.2:
            strategy["hedge"] = self.make_object(after_ms=lambda: 20, percentile=lambda: 95, max_ratio=lambda: 0.1)
        return strategy

    def make_sticky_session(self) -> dict[str, Any]:
        return self.make_object(
            enabled=lambda: self.random.random() < 0.3, hash_fields=lambda: ["metadata.user"], ttl=lambda: 5
        )

    def make_query(self, depth: int) -> dict[str, Any]:
        def make_bound() -> object:
            return self.choose(*[5, "5", "-.5", 0.5] * 20, "five", True)

        tests = self.make_object(
            **{"$eq": lambda: 1, "$ne": lambda: None, "$in": lambda: ["a"], "$nin": list, "$regex": lambda: "^a"},
            **dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), make_bound),
        )
        keys: dict[str, Callable[[], Any]] = {
            "metadata.plan": lambda: self.choose("paid", tests),
            "params.temperature": lambda: self.choose(1, None, tests),
            "url.pathname": lambda: self.choose("/v1", tests),
        }
        if depth:
            keys |= {key: lambda: [self.make_query(depth - 1)] for key in ("$and", "$or")}
        return self.make_object(**keys)

    def make_circuit_breaker(self) -> dict[str, Any]:
        return {"failure_threshold": 1, "cooldown_interval": 30_000} | self.make_object(
            failure_threshold_percentage=lambda: self.choose(*[0.5, 99.5, 100] * 4, 0, 101),
            minimum_requests=lambda: 3,
            failure_status_codes=self.make_status_codes,
        )

    def make_deployments(self) -> list[dict[str, Any]]:
        chosen = {"is_default": lambda: self.random.random() < 0.1}
        needed = {"deployment_id": "d", "alias": "a", "api_version": "2024-10-21"}
        written = [needed | self.make_object(**chosen) for _ in range(self.random.randrange(3))]
        if written and self.random.random() < 0.05:
            del written[0][self.random.choice([*needed])]
        return written

    def make_status_codes(self) -> list[int]:
        return [self.random.randrange(95, 605) if self.random.random() < 0.01 else 503 for _ in range(3)]

    def make_features(self) -> dict[str, Any]:
        return self.make_object(
            provider=lambda: self.choose(*["openai", "@mine"] * 10, "opnai", "@"),
            api_key=lambda: "k",
            virtual_key=lambda: "mine",
            passthrough=lambda: self.random.random() < 0.05,
            weight=lambda: self.choose(0.5, 0.5, 1, 0),
            retry=lambda: (
                {"attempts": 2} | self.make_object(on_status_codes=self.make_status_codes, use_retry_after_headers=bool)
            ),
            cache=lambda: self.choose(
                "simple", {"mode": "simple"} | self.make_object(max_age=lambda: self.choose(*[60] * 9, 59))
            ),
            cb_config=self.make_circuit_breaker,
            recovery=lambda: self.choose("off", "hold", {"mode": "continue"} | self.make_object(prefill=bool)),
            request_timeout=lambda: self.choose(1, 500, 2.0),
            custom_host=lambda: "https://host.example/v1",
            forward_headers=lambda: ["x-team"],
            default_params=lambda: {"a": 1},
            override_params=lambda: {"a": 1},
            drop_params=lambda: ["tools[0].a"],
            drop_model_prefix=lambda: self.choose(*["openai/"] * 20, 1),
            strict_open_ai_compliance=bool,
            vertex_region=lambda: self.choose(*["eu"] * 20, ""),
            vertex_service_account_json=lambda: self.choose(*[{"type": "service_account"}, '{\n"a": 1}\n'] * 20, "", 1),
            oracle_private_key=lambda: self.choose(*["-----BEGIN PRIVATE KEY-----\nabc\n"] * 40, "a\0", {}),
            deployments=self.make_deployments,
        )


def parser_problems(config: dict[str, Any]) -> list[str]:
    try:
        engine.check("config", msgspec.json.encode(config), TARGET_LIMITS)
    except engine.EngineError as error:
        return [f"{problem['path']} {problem['message']}" for problem in error.problems]
    return []


def test_schema_agrees_with_the_parser():
    schema = jsonschema_rs.validator_for(engine.config_schema())
    received = {True: 0, False: 0}
    for seed in range(5_000):
        config = ConfigGenerator(seed).make_config(seed % 4)
        actual, problems = [str(error) for error in schema.iter_errors(config)], parser_problems(config)
        # No schema can express that a name must be the name of a target.
        reported = [problem for problem in problems if "no target is named" not in problem]
        assert bool(actual) == bool(reported), (config, actual, problems)
        received[not reported] += 1
    assert min(received.values()) > 1_000, received
