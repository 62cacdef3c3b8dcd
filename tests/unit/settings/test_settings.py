"""Settings: their sources, which source takes precedence, and what is rejected."""

from __future__ import annotations

import json
import math
import pickle
import re
from typing import TYPE_CHECKING

import pytest

from penstock import settings as module
from penstock.errors import SettingsError
from penstock.settings import Server, Settings, load_settings
from penstock.settings.engine_json import encode_engine_settings
from penstock.settings.secret import Secret
from tests.shape.repository import read_text

if TYPE_CHECKING:
    from pathlib import Path

ALL_INTERFACES = "0.0.0.0"


def write_settings_file(folder: Path, text: str) -> str:
    file = folder / "penstock.toml"
    file.write_text(text)
    return str(file)


def problems_by_path(error: SettingsError) -> dict[str, str]:
    return {problem.path: problem.message for problem in error.problems}


def test_precedence_is_option_environment_file(tmp_path: Path):
    file = write_settings_file(
        tmp_path, "[server]\nport = 1\nhost = '127.0.0.2'\ndrain_seconds = 3\n[limits]\nbody_bytes = 2048\n"
    )
    read = load_settings(file, {"PENSTOCK_SERVER_PORT": "2", "PENSTOCK_SERVER_HOST": "127.0.0.3"}, {"server.port": 3})
    assert (read.server.port, read.server.host, read.server.drain_seconds) == (3, "127.0.0.3", 3.0)
    assert read.limits.body_bytes == 2048
    assert read.file == file


def test_defaults_apply_without_any_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert load_settings(None, {}) == Settings().with_data_dir()


def test_everything_is_stored_in_one_folder_without_a_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    read = load_settings(None, {})
    assert read.store.data_dir == f"{tmp_path}/penstock-data"
    assert read.sibling_path("penstock.db") == f"{tmp_path}/penstock-data/penstock.db"
    assert read.log_store_folder == f"{tmp_path}/penstock-data/logs/store"
    assert read.files_folder == f"{tmp_path}/penstock-data/files"
    assert read.creates_store


@pytest.mark.parametrize("change", [{"PENSTOCK_STORE_URL": "postgresql://h/d"}, {"PENSTOCK_STORE_ENABLED": "no"}])
def test_another_store_or_none_keeps_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
):
    monkeypatch.chdir(tmp_path)
    read = load_settings(None, change)
    assert not read.creates_store
    assert read.sibling_path("penstock.key") == f"{tmp_path}/penstock.key"
    assert read.records.path == "logs/records.jsonl"


def test_store_of_an_older_release_is_used_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "penstock.db").touch()
    read = load_settings(None, {})
    assert read.store_url
    assert read.store_url.reveal() == f"sqlite:///{tmp_path}/penstock.db"
    assert not read.creates_store


def test_settings_file_that_is_added_later_keeps_the_store(tmp_path: Path):
    file = write_settings_file(tmp_path, "")
    assert not load_settings(file, {}).store.data_dir
    (tmp_path / "penstock-data").mkdir()
    (tmp_path / "penstock-data/penstock.db").touch()
    assert load_settings(file, {}).store.data_dir == f"{tmp_path}/penstock-data"


def test_master_key_of_an_embedded_store_is_used_with_another_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    moved = {"PENSTOCK_STORE_URL": "postgresql://h/d"}
    (tmp_path / "penstock-data").mkdir()
    (tmp_path / "penstock-data/penstock.key").touch()
    assert load_settings(None, moved).sibling_path("penstock.key") == f"{tmp_path}/penstock-data/penstock.key"
    assert load_settings(None, moved).log_store_folder == f"{tmp_path}/penstock-data/logs/store"
    (tmp_path / "penstock.key").touch()
    assert load_settings(None, moved).sibling_path("penstock.key") == f"{tmp_path}/penstock.key"


@pytest.mark.parametrize("name", ["PENSTOCK_LOGSTORE_URL", "PENSTOCK_STOREURL", "PENSTOCK_SERVR_PORT"])
def test_misspelt_section_of_a_variable_is_rejected(tmp_path: Path, name: str):
    with pytest.raises(SettingsError, match=f"{name}.*did you mean PENSTOCK_"):
        load_settings(None, {name: "x"})
    # A variable that the settings file refers to may have any name.
    file = write_settings_file(tmp_path, f'[store]\nadmin_key = "${{{name}}}"\n')
    assert load_settings(file, {name: "x" * 48}).store.admin_key


def test_data_folder_of_a_settings_file_keeps_a_given_path_of_records(tmp_path: Path):
    file = write_settings_file(tmp_path, f'[store]\ndata_dir = "{tmp_path}/data"\n[records]\npath = "here.jsonl"\n')
    read = load_settings(file, {})
    assert read.records.path == "here.jsonl"
    assert read.sibling_path("penstock.db") == f"{tmp_path}/data/penstock.db"
    assert Settings().bind_address == "127.0.0.1"
    assert Settings().server.port == 8787


def test_environment_names_of_the_specification_are_used(tmp_path: Path):
    ca = tmp_path / "ca.pem"
    ca.touch()
    env = {
        "REQUEST_TIMEOUT": "1500",
        "TRUSTED_CUSTOM_HOSTS": "one.example, two.example,",
        "BLOCK_INLINE_CONFIG": "ON",
        "ENABLE_PROMETHEUS": "true",
        "TLS_CA": str(ca),
        "API_KEY_PREFIX": "acme",
    }
    read = load_settings(None, env)
    assert read.upstream.request_timeout_ms == 1500
    assert read.upstream.trusted_custom_hosts == ("one.example", "two.example")
    assert read.security.block_inline_config
    assert read.metrics.enabled
    assert read.upstream.tls_ca == str(ca)
    assert read.store.key_prefix == "acme"


def test_all_problems_are_reported_with_path_and_allowed_values(tmp_path: Path):
    file = write_settings_file(
        tmp_path,
        "[server]\nprot = 1\nport = 'x'\n[sever]\nport = 1\n[log]\nlevel = 'loud'\n[upstream]\ntls_ca = '/no/such'\n",
    )
    with pytest.raises(SettingsError) as caught:
        load_settings(file, {"REQUEST_TIMEOUT": "soon", "PENSTOCK_RECORDS_PAHT": "x", "PENSTOCK_MY_OWN": "fine"})
    actual = problems_by_path(caught.value)
    assert set(actual) == {
        "server.prot",
        "server.port",
        "sever",
        "log.level",
        "REQUEST_TIMEOUT",
        "PENSTOCK_RECORDS_PAHT",
        "upstream.tls_ca",
    }
    assert "allowed: host, port, workers" in actual["server.prot"]
    assert "allowed: server, security" in actual["sever"]
    assert "PENSTOCK_RECORDS_PATH" in actual["PENSTOCK_RECORDS_PAHT"]
    assert "'x'" in actual["server.port"]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("[server", "is not valid TOML"),
        ("server = 1", "must be a table"),
        ("[server]\nhost = 'example.com'", "IP address"),
    ],
)
def test_unusable_file_reports_the_reason(tmp_path: Path, text: str, content: str):
    with pytest.raises(SettingsError, match=content):
        load_settings(write_settings_file(tmp_path, text), {})


def test_missing_file_is_an_error():
    with pytest.raises(SettingsError, match="cannot read '/no/such/file': No such file"):
        load_settings("/no/such/file", {})


def test_snapshot_tables_are_not_settings(tmp_path: Path):
    assert load_settings(write_settings_file(tmp_path, "[[keys]]\nname = 'a'\nkey = 'b'\n"), {}).server == Server()


def test_key_is_required_off_loopback_even_without_any_keys():
    assert not Settings().require_key
    assert load_settings(None, {"PENSTOCK_SERVER_HOST": ALL_INTERFACES}).require_key
    assert not load_settings(
        None, {"PENSTOCK_SERVER_HOST": ALL_INTERFACES, "PENSTOCK_SECURITY_REQUIRE_KEY": "no"}
    ).require_key
    assert load_settings(None, {"PENSTOCK_SECURITY_REQUIRE_KEY": "yes"}).require_key


def test_engine_receives_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {"PENSTOCK_SERVER_RUN_DIR": "/run/p"})
    reported = json.loads(encode_engine_settings(settings, 3))
    assert reported == {
        "control_socket": "/run/p/control.sock",
        "worker": 3,
        "workers": Server().workers,
        "port": 8787,
        "header_timeout_ms": 10_000,
        "base_path": "",
        "header_bytes": 65_536,
        "keep_alive_ms": 75_000,
        "request_timeout_ms": 300_000,
        "dns_timeout_ms": 2000,
        "connect_timeout_ms": 3000,
        "tls_timeout_ms": 5000,
        "idle_timeout_ms": 60_000,
        "stream_timeout_ms": 3_600_000,
        "heartbeat_ms": 15_000,
        "write_stall_ms": 60_000,
        "max_body_bytes": 104_857_600,
        "buffered_body_bytes": 536_870_912,
        "body_idle_ms": 10_000,
        "body_total_ms": 300_000,
        "body_rate": 1024,
        "body_grace_ms": 10_000,
        "max_in_flight": 20_000,
        "max_root_targets": 100,
        "max_conditional_targets": 1000,
        "max_nested_targets": 50,
        "retry_backoff_ms": 1000,
        "retry_budget_percent": 20,
        "retry_budget_min": 10,
        "cache_bytes": 67_108_864,
        "inline_config_bytes": 16_777_216,
        "recovery_bytes": 67_108_864,
        "recovery_stream_bytes": 4_194_304,
        "redis_url": None,
        "redis_prefix": "penstock:",
        "redis_wait_ms": 50,
        "redis_answer_bytes": 1_048_576,
        "trusted_custom_hosts": [],
        "header_aliases": ["x-portkey-"],
        "require_key": False,
        "block_inline_config": False,
        "records": True,
        "outbox_bytes": 67_108_864,
        "record_bodies": True,
        "record_body_bytes": 1_048_576,
        "spool_bytes": 10_737_418_240,
        "sync_records": False,
        "spool_path": settings.spool_folder,
        "limits_path": settings.limits_folder,
        "record_peers": False,
        "sensitive_headers": [],
        "headers_to_metadata": [],
        "mock_host": None,
        "http2": True,
        "https_proxy": None,
        "http_proxy": None,
        "no_proxy": [],
        "tls_ca": None,
        "identity": {
            "allow_provider_use": False,
            "aws_role_arn": None,
            "aws_sts_endpoint": None,
            "aws_web_identity_token_file": None,
            "aws_container_url": None,
            "aws_container_token": None,
            "aws_container_token_file": None,
            "aws_metadata_url": "http://169.254.169.254",
            "azure_identity_url": None,
            "azure_identity_header": None,
            "azure_metadata_url": "http://169.254.169.254",
            "azure_federated_token_file": None,
            "azure_tenant_id": None,
            "azure_client_id": None,
            "azure_authority_host": "https://login.microsoftonline.com",
            "google_token_file": None,
            "google_sts_url": "https://sts.googleapis.com/v1/token",
            "google_iam_url": "https://iamcredentials.googleapis.com",
        },
    }


def parse_rust_literal(expression: str) -> object:
    """Returns the JSON value of a Rust expression in a `Default` implementation."""
    plain = re.sub(r'(".*")\.to_owned\(\)', r"\1", expression).removeprefix("vec!")
    if re.fullmatch(r"[\d_ *]+", plain):
        return math.prod(int(factor) for factor in plain.split("*"))
    return json.loads({"None": "null", "Vec::new()": "[]", "String::new()": '""'}.get(plain, plain))


def engine_defaults(struct: str) -> dict[str, object]:
    """Returns the engine's default for each field of a settings struct."""
    source = read_text("rust/core/src/process/settings.rs")
    (fields,) = re.findall(rf"pub struct {struct} \{{\n(.*?)^\}}", source, re.DOTALL | re.MULTILINE)
    (values,) = re.findall(
        rf"^impl Default for {struct} \{{.*?Self \{{\n(.*?)^        \}}", source, re.DOTALL | re.MULTILINE
    )
    known = dict(re.findall(r"^ {12}(\w+): (.*),$", values, re.MULTILINE))
    assert list(known) == re.findall(r"^    pub (\w+):", fields, re.MULTILINE)
    return {
        name: parse_rust_literal(content) for name, content in known.items() if content != "WorkloadIdentity::default()"
    }


def test_engine_settings_are_complete_with_equal_defaults():
    reported = json.loads(encode_engine_settings(Settings(), 1))
    assert reported.pop("identity") == engine_defaults("WorkloadIdentity")
    # In its own tests, the engine has no network address, no control process and no spool.
    own = engine_defaults("Settings") | {
        name: reported[name] for name in ("control_socket", "port", "spool_path", "limits_path")
    }
    assert reported == own


def test_ecs_container_path_becomes_a_url():
    reported = json.loads(
        encode_engine_settings(load_settings(None, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/c/1"}), 1)
    )
    assert reported["identity"]["aws_container_url"] == "http://169.254.170.2/v2/c/1"


def test_header_lists_use_their_environment_names():
    environ = {
        "GATEWAY_HEADER_ALIASES": "X-Portkey-, x-acme-",
        "HEADERS_TO_METADATA": "X-Team,x-user",
        "ORGANISATION_HEADERS_TO_MASK": "x-private",
    }
    reported = json.loads(encode_engine_settings(load_settings(None, environ), 1))
    assert reported["header_aliases"] == ["x-portkey-", "x-acme-"]
    assert reported["headers_to_metadata"] == ["X-Team", "x-user"]
    assert reported["sensitive_headers"] == ["x-private"]
    assert load_settings(None, {"GATEWAY_HEADER_ALIASES": ""}).security.header_aliases == ()


@pytest.mark.parametrize("path", ["/gw", "/tools/gateway", "/a.b/~c_d-1", "/v1x/console"])
def test_base_path_is_the_beginning_of_a_path(path: str):
    environ = {"PENSTOCK_SERVER_BASE_PATH": path}
    assert json.loads(encode_engine_settings(load_settings(None, environ), 1))["base_path"] == path


@pytest.mark.parametrize(
    "path", ["gw", "/", "/gw/", "//gw", "/a b", "/a%20b", "/../gw", "/gw/.", "/v1", "/v1beta/gw", "/console"]
)
def test_base_path_cannot_be_ambiguous_or_one_of_the_gateway(path: str):
    with pytest.raises(SettingsError, match=r"server\.base_path: .* is not allowed: expected a path such as"):
        load_settings(None, {"PENSTOCK_SERVER_BASE_PATH": path})


@pytest.mark.parametrize("prefix", ["x-portkey", "portkey-", "x-", "x-a b-", "authorization"])
def test_header_alias_must_be_a_header_prefix(prefix: str):
    with pytest.raises(SettingsError, match="header_aliases"):
        load_settings(None, {"GATEWAY_HEADER_ALIASES": prefix})


def test_proxy_variables_are_read_in_either_case_and_kept_secret():
    environ = {
        "HTTPS_PROXY": "http://u:sesame@one.example:3128",
        "http_proxy": "two.example",
        "no_proxy": "a.example, *.b",
    }
    read = load_settings(None, environ)
    reported = json.loads(encode_engine_settings(read, 1))
    assert (reported["https_proxy"], reported["http_proxy"]) == ("http://u:sesame@one.example:3128", "two.example")
    assert reported["no_proxy"] == ["a.example", "*.b"]
    assert "sesame" not in repr(read)
    assert load_settings(None, {"HTTPS_PROXY": " ", "https_proxy": "lower.example"}).upstream.https_proxy is None
    for wrong in ("socks5://u:sesame@one.example", "https://u:sesame@one.example", "http://", "u:sesame@one.example:x"):
        with pytest.raises(SettingsError) as caught:
            load_settings(None, {"HTTP_PROXY": wrong})
        assert "upstream.http_proxy" in str(caught.value)
        assert "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[jwt]\nenabled = true", "jwt: needs jwks_url or jwks, or [[issuers]]"),
        ("[[issuers]]\njwks_url = 'https://a.test'", "issuers: have no effect, because tokens are not accepted"),
        ("[jwt]\nenabled = true\n[[issuers]]\nissuer = 'a'", "issuers[0]: needs either jwks_url or jwks"),
        ("[jwt]\nenabled = true\n[[issuers]]\njwks_url = 'a.test'", "issuers[0].jwks_url: 'a.test' is not allowed"),
        ("[jwt]\nenabled = true\n[[issuers]]\njwks = '{}x'", "issuers[0].jwks: is not a set of keys"),
        ("[jwt]\nenabled = true\n[[issuers]]\njwks = '{}'", "issuers[0].jwks: is not a set of keys"),
        ("[jwt]\nenabled = true\n[[issuers]]\ncolour = 'a'", "issuers[0]: object contains unknown field `colour`"),
        ("[jwt]\nenabled = true\n[[issuers]]\norganisations = 'a'", "issuers[0].organisations: expected `array`"),
        (
            "[jwt]\nenabled = true\njwks_url = 'https://a.test'\n[[issuers]]\njwks_url = 'https://a.test'",
            "issuers: 'https://a.test' is used twice",
        ),
        ("issuers = 5", "issuers[0]: expected `object`"),
    ],
)
def test_invalid_issuers_are_reported_with_their_paths(tmp_path: Path, text: str, words: str):
    with pytest.raises(SettingsError, match=re.escape(words)):
        load_settings(write_settings_file(tmp_path, text), {})


def test_jwt_section_precedes_the_issuer_tables(tmp_path: Path):
    text = "[jwt]\nenabled = true\njwks_url = 'https://a.test'\n[[issuers]]\njwks_url = 'https://b.test'\nissuer = 'b'"
    read = load_settings(write_settings_file(tmp_path, text), {})
    assert [(trusted_issuer.jwks_url, trusted_issuer.issuer) for trusted_issuer in read.trusted_issuers] == [
        ("https://a.test", ""),
        ("https://b.test", "b"),
    ]


def test_settings_file_is_the_given_one_or_the_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert module.find_settings_file(None, {}) is None
    write_settings_file(tmp_path, "")
    assert module.find_settings_file(None, {}) == str(tmp_path / "penstock.toml")
    assert module.find_settings_file(None, {"PENSTOCK_CONFIG": "/b"}) == "/b"
    assert module.find_settings_file("/a", {"PENSTOCK_CONFIG": "/b"}) == "/a"


def test_secret_is_masked_and_cannot_be_pickled():
    secret = Secret("canary")
    assert secret.reveal() == "canary"
    assert "canary" not in f"{secret} {secret!r} {[secret]}"
    with pytest.raises(TypeError):
        pickle.dumps(secret)


def test_redis_url_is_secret_and_sent_to_the_engine_only():
    read = load_settings(None, {"REDIS_URL": "redis://:hidden@cache.example:6379/1", "PENSTOCK_REDIS_WAIT_MS": "20"})
    assert "hidden" not in repr(read)
    reported = json.loads(encode_engine_settings(read, 1))
    assert (reported["redis_url"], reported["redis_wait_ms"]) == ("redis://:hidden@cache.example:6379/1", 20)


@pytest.mark.parametrize("url", ["http://:hidden@cache.example", "cache.example:6379", "hidden"])
def test_rejects_an_invalid_redis_url_without_printing_it(url: str):
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {"REDIS_URL": url})
    assert set(problems_by_path(caught.value)) == {"redis.url"}
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["with_a_line", "seventeen17lettrs"])
def test_key_prefix_is_short_and_alphanumeric(prefix: str):
    with pytest.raises(SettingsError, match="API_KEY_PREFIX"):
        load_settings(None, {"API_KEY_PREFIX": prefix})


@pytest.mark.parametrize(
    ("url", "clickhouse"),
    [("", None), ("duckdb:", None), ("clickhouse://u:p@host:8123/logs", "clickhouse://u:p@host:8123/logs")],
)
def test_log_store_is_shared_only_with_clickhouse(url: str, clickhouse: str | None):
    settings = load_settings(None, {"PENSTOCK_LOG_STORE_URL": url}).log_store.clickhouse_url
    assert (settings.reveal() if settings else None) == clickhouse


BUCKET_MISTAKES = {
    "files.store": ("bucket", "'bucket' is not allowed: expected `folder`, `s3://bucket` or `s3://bucket/prefix`"),
    "log_store.bodies": ("s3://b/p?x=1", "expected `folder`, `s3://bucket`"),
    "files.s3_endpoint_url": ("ftp://host", "'ftp://host' is not allowed: expected a URL with http:// or https://"),
    "log_store.s3_endpoint_url": ("https://", "expected a URL with http:// or https://"),
    "files.s3_access_key_id": ("AKIDEXAMPLE", "is not allowed without files.s3_secret_access_key"),
}


def environment_name(path: str) -> str:
    return f"PENSTOCK_{path.replace('.', '_').upper()}"


@pytest.mark.parametrize("path", BUCKET_MISTAKES)
def test_mistakes_in_buckets_are_reported(path: str):
    value, message = BUCKET_MISTAKES[path]
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {environment_name(path): value})
    problems = problems_by_path(caught.value)
    assert set(problems) == {path}
    assert message in problems[path]


@pytest.mark.parametrize(
    ("path", "value"), [("files.store", "s3://key:hidden@bucket"), ("files.s3_endpoint_url", "http://u:hidden@host")]
)
def test_credentials_in_bucket_urls_are_not_repeated(path: str, value: str):
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {environment_name(path): value})
    assert set(problems_by_path(caught.value)) == {path}
    assert "hidden" not in str(caught.value)
