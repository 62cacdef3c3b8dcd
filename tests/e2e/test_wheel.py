"""The wheel: what is in it, and a first request with nothing but Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from penstock import __version__
from tests.gateway import CARGO_TARGET_DIR
from tests.integration.raw_http import CHAT_PATH, MOCK_HEADERS, chat_body, send_raw_request
from tests.processes import Program, free_port, wait_for
from tests.shape.repository import ROOT

BUILD_SECONDS = 600
START_SECONDS = 60
# Prefixes of packages that the virtual environment does not borrow: pip, penstock, and those that only extras install.
NOT_BORROWED = ("pip", "penstock", "aiobotocore", "asyncpg", "azure", "botocore", "msal", "nacl", "pynacl", "redis")
# Files that the wheel must contain, besides the compiled engine.
EXPECTED_MEMBERS = (
    "penstock/console/index.html",
    "penstock/bin/penstock-mock",
    "penstock/store/migrations/versions/0001_first_tables.py",
    "penstock/resources/schema.html",
    "penstock/py.typed",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel with the engine that the tests have built."""
    folder = tmp_path_factory.mktemp("wheel") / "dist"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "CARGO_TARGET_DIR": str(CARGO_TARGET_DIR),
        "PROFILE": "dev",
    }
    done = subprocess.run(
        ["make", "wheel", f"DIST={folder}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the wheel into a new virtual environment, which borrows the packages that it needs without extras. No
    compiler is on PATH.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not installed.name.lower().startswith(NOT_BORROWED):
            (packages / installed.name).symlink_to(installed)
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin/python",
        "install",
        "--no-index",
        "--no-deps",
        wheel,
    ]
    done = subprocess.run(
        install, check=False, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, env={"PATH": ""}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin/penstock"


@pytest.mark.slow(70)
@pytest.mark.timeout(BUILD_SECONDS + 60)
def test_wheel_has_the_console_the_mock_provider_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in EXPECTED_MEMBERS if name not in names]
    tops = {name.partition("/")[0] for name in names}
    assert {re.sub(r"-.*\.", ".", top) for top in tops} == {"penstock", "penstock.dist-info"}
    assert not [
        name for name in names if "__pycache__" in name or "node_modules" in name or name.endswith((".map", ".rs"))
    ]


@pytest.mark.slow(5)
@pytest.mark.timeout(BUILD_SECONDS + 60)
def test_installed_wheel_names_its_version_and_commit(command: Path):
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    for words in (["--version"], ["version"]):
        displayed = subprocess.run(
            [command, *words], check=True, capture_output=True, text=True, env={"PATH": ""}
        ).stdout
        assert displayed == f"penstock {__version__} ({commit})\n"


@pytest.mark.slow(5)
@pytest.mark.timeout(BUILD_SECONDS + 60)
def test_installed_wheel_answers_the_first_request(command: Path, tmp_path: Path):
    port = free_port()
    program = Program(
        [command, "serve", "--port", str(port), "--mock"], tmp_path / "serve.log", env={"PATH": ""}, cwd=tmp_path
    )
    try:
        wait_for(
            "the gateway",
            lambda: (program.check_alive(), "sdk/bin/python -c" in program.read_output())[1] or None,
            START_SECONDS,
        )
        (key,) = re.findall(r"^export PENSTOCK_API_KEY=(\S+)$", program.read_output(), re.MULTILINE)
        url = f"http://127.0.0.1:{port}"
        headers = {**MOCK_HEADERS, "x-gateway-api-key": key}
        assert send_raw_request(url, CHAT_PATH, chat_body(), headers).status == 200
        assert send_raw_request(url, "/console/", b"", {}, method="GET").status == 200
    finally:
        program.stop()
        program.kill()


@pytest.mark.slow(5)
@pytest.mark.timeout(BUILD_SECONDS + 60)
def test_plain_wheel_names_the_extra_of_each_setting_that_needs_one(command: Path, tmp_path: Path):
    settings = tmp_path / "penstock.toml"
    settings.write_text(
        '[store]\nurl = "postgresql://penstock@127.0.0.1/penstock"\n[redis]\nurl = "redis://127.0.0.1:6379"\n'
        '[log_store]\nbodies = "s3://bucket"\n[files]\nstore = "s3://bucket"\n'
    )
    done = subprocess.run(
        [command, "check", settings], check=False, capture_output=True, text=True, env={"PATH": ""}, cwd=tmp_path
    )
    assert done.returncode != 0
    for path, extra in (
        ("store.url", "postgres"),
        ("redis.url", "redis"),
        ("log_store.bodies", "aws"),
        ("files.store", "aws"),
    ):
        assert f"{path}: needs the extra `{extra}`: pip install 'penstock[{extra}]'" in done.stderr, done.stderr


@pytest.mark.slow(5)
@pytest.mark.timeout(BUILD_SECONDS + 60)
@pytest.mark.parametrize(("manager", "extra"), [("aws_sm", "aws"), ("azure_kv", "azure")])
def test_plain_wheel_names_the_extra_of_a_secret_manager(command: Path, tmp_path: Path, manager: str, extra: str):
    script = (
        "import asyncio; from penstock.secrets import backends\n"
        f"try: asyncio.run(backends.load_backend({manager!r}))\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run(
        [command.with_name("python"), "-c", script],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": ""},
        cwd=tmp_path,
    )
    assert done.stdout == (f"the secret manager {manager} needs the extra `{extra}`: pip install 'penstock[{extra}]'\n")
