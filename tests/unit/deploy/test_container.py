"""Container file: sources that exist and are not ignored, versions of the manifests, and an image that needs no rights."""

from __future__ import annotations

import json
import re
import shlex
from typing import NamedTuple

import pytest

from penstock.settings import load_settings
from tests.shape.repository import ROOT, read_text, read_toml
from tests.unit.deploy.artefacts import check_command, setting_variables, unknown_settings_by_file

FILE = "deploy/container/Containerfile"
STATE = "/var/lib/penstock"


class Instruction(NamedTuple):
    """One instruction: its name, its text on one line, and the name of its stage; empty for the image itself."""

    name: str
    text: str
    stage: str


def read_instructions() -> list[Instruction]:
    lines = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", read_text(FILE), flags=re.MULTILINE)).splitlines()
    instructions: list[Instruction] = []
    stage = ""
    for line in filter(str.strip, lines):
        name, _, text = line.partition(" ")
        if name == "FROM":
            stage = text.partition(" AS ")[2]
        instructions.append(Instruction(name, text, stage))
    return instructions


INSTRUCTIONS = read_instructions()
IMAGE = [item for item in INSTRUCTIONS if not item.stage and item.name != "ARG"]


def text_of(name: str) -> str:
    (actual,) = (item.text for item in IMAGE if item.name == name)
    return actual


def allowed_sources() -> set[str]:
    lines = read_text(".containerignore").splitlines()
    assert "*" in lines
    return {line[1:] for line in lines if line.startswith("!")}


def test_sources_exist_and_are_not_ignored():
    assert not {name for name in allowed_sources() if not (ROOT / name).exists()}
    copied = [shlex.split(item.text)[:-1] for item in INSTRUCTIONS if item.name == "COPY" and "--from" not in item.text]
    sources = {source for words in copied for source in words if not source.startswith("--")} - {"."}
    assert len(sources) >= 5
    tops = allowed_sources()
    assert not {source for source in sources if not any(f"{source}/".startswith(f"{top}/") for top in tops)}
    assert not {source for source in sources if not (ROOT / source).exists()}


def test_build_gets_all_that_the_wheel_needs():
    project = read_toml("pyproject.toml")
    needed = {project["project"]["readme"], *project["project"]["license-files"], "Cargo.lock", "Cargo.toml"}
    needed |= {project["tool"]["maturin"]["python-source"], project["tool"]["maturin"]["manifest-path"].split("/")[0]}
    assert needed <= allowed_sources()


def test_stage_that_builds_the_wheel_puts_the_same_programs_into_it_as_make():
    steps = [item.text for item in INSTRUCTIONS if item.stage == "build" and item.name == "RUN"]
    (mock,) = [number for number, step in enumerate(steps) if "python/penstock/bin/penstock-mock" in step]
    (wheel,) = [number for number, step in enumerate(steps) if "maturin build" in step]
    assert mock < wheel
    assert "cargo build --release --locked --package penstock-mock" in steps[mock]
    assert "$(BUNDLED)/penstock-mock" in read_text("Makefile")
    # A program that was built on this machine never gets into the image.
    assert "python/penstock/bin" in read_text(".containerignore").splitlines()


def test_documented_builds_name_the_commit():
    assert "ARG COMMIT" in read_text(FILE)
    assert "--build-arg COMMIT=" in read_text("docs/deploy-containers.md")
    assert "COMMIT:" in read_text("deploy/compose/compose.yaml")


def test_docker_and_podman_ignore_the_same_files():
    assert (ROOT / ".dockerignore").read_text() == read_text(".containerignore")
    assert (ROOT / ".dockerignore").is_symlink()


def test_stages_exist_and_have_the_versions_of_the_manifests():
    arguments = dict(item.text.split("=", 1) for item in INSTRUCTIONS if item.name == "ARG" and not item.stage)
    rust = read_toml("Cargo.toml")["workspace"]["package"]["rust-version"]
    assert f":{rust}-" in arguments["RUST"]
    node = json.loads(read_text("console/package.json"))["engines"]["node"].removeprefix(">=")
    assert f":{node}-" in arguments["NODE"]
    # The virtual environment of one stage runs with the Python of another.
    assert all("bookworm" in image for image in arguments.values())
    stages = {item.stage for item in INSTRUCTIONS} - {""}
    assert set(re.findall(r"--from=(\S+)", read_text(FILE))) <= stages


def test_image_has_no_build_step_and_a_user_without_rights():
    assert not [item for item in IMAGE if item.name == "RUN"]
    assert re.fullmatch(r"65532:\d+", text_of("USER"))
    assert text_of("VOLUME") == text_of("WORKDIR") == STATE


def test_environment_is_valid_and_writes_to_the_volume_only():
    environ = dict(word.split("=", 1) for word in shlex.split(text_of("ENV")))
    assert {name for name in environ if name.startswith("PENSTOCK_")} <= setting_variables()
    settings = load_settings(None, environ)
    assert (settings.is_loopback, str(settings.server.port)) == (False, text_of("EXPOSE"))
    for path in (environ["HOME"], environ["TMPDIR"], settings.server.run_dir):
        assert f"{path}/".startswith(f"{STATE}/")


@pytest.mark.parametrize("name", ["CMD", "HEALTHCHECK"])
def test_commands_exist(name: str):
    assert json.loads(text_of("ENTRYPOINT")) == ["penstock"]
    words = json.loads(text_of(name).partition("CMD ")[2] or text_of(name))
    check_command(words[words[0] == "penstock" :])


def test_file_names_only_settings_that_exist():
    assert not unknown_settings_by_file("container")
