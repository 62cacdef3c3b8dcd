"""Prompts as files: pulled from a gateway, changed, compared and pushed."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from tests.doc_examples import page_examples
from tests.fork_server import run_penstock
from tests.integration.management_client import Client, expect_ok
from tests.integration.serving import run_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gateway import Mock
    from tests.integration.conftest import StoreFactory

ONE_STORE = True
MESSAGES = [
    {"role": "system", "content": "Answer in {{language}}.\nBe short."},
    {"role": "user", "content": [{"type": "text", "text": "{{question}}"}]},
]


@pytest.fixture(scope="module")
def admin(provider: Mock, new_store: StoreFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("prompt-files")
    with run_gateway(folder, {"mock": {"host": provider.url}}, env=new_store(folder)) as gateway:
        yield Client(gateway)


@pytest.fixture
def workspace(admin: Client, tmp_path: Path) -> str:
    """Returns a workspace with a chat prompt and a text prompt."""
    target_workspace = admin.create("/v1/workspaces", {"name": tmp_path.name})["slug"]
    common: dict[str, Any] = {"virtual_key": "main", "model": "gpt-4o", "workspace_id": target_workspace}
    chat = {"name": "Chat", "slug": "chat", "string": json.dumps(MESSAGES), "parameters": {"max_tokens": 9}}
    admin.create("/v1/prompts", {**common, **chat})
    admin.create(
        "/v1/prompts", {**common, "name": "Text", "slug": "text", "string": "Hello {{name}}", "parameters": {}}
    )
    return target_workspace


def test_examples_of_the_page_work(admin: Client, tmp_path: Path):
    workspace = admin.create("/v1/workspaces", {"name": "page of files"})["slug"]
    prompt_file, partial_file = (example.text for example in page_examples("docs/prompt-files.md", "yaml"))
    commands = [
        [part.replace("$WORKSPACE", workspace) for part in shlex.split(line)[2:]]
        for example in page_examples("docs/prompt-files.md", "sh")
        for line in example.text.splitlines()
        if line.startswith("penstock ")
    ]
    pull, diff, push = commands
    assert [command[:2] for command in commands] == [[verb, "prompts/"] for verb in ("pull", "diff", "push")]
    folder = tmp_path / "prompts"
    (folder / "partials").mkdir(parents=True)
    (folder / "partials/tone.yaml").write_text(partial_file)
    (folder / "greeting.yaml").write_text(prompt_file)
    for number in range(4):
        (folder / f"other-{number}.yaml").write_text(f"name: Other {number}\nprovider: main\ntext: '{number}'\n")

    def run(words: list[str], status: int = 0) -> str:
        return run_prompts(admin, *[word.replace("prompts/", f"{folder}/") for word in words], status=status)

    assert "6 saved, 0 unchanged" in run(push)
    files = {path: path.read_text() for path in folder.rglob("*.yaml")}
    for path in files:
        path.unlink()
    run(pull)
    # The page shows files as a pull writes them.
    assert {path: path.read_text() for path in folder.rglob("*.yaml")} == files
    assert "no differences" in run(diff)
    (folder / "greeting.yaml").write_text(prompt_file.replace("Answer in", "Reply in"))
    (folder / "welcome.yaml").write_text("name: Welcome\nprovider: main\ntext: Hi\n")
    run(diff, status=2)
    (expected_output,) = [example.text for example in page_examples("docs/prompt-files.md", "")]
    assert sorted(run(push).splitlines()) == sorted(expected_output.splitlines())
    greeting = admin.read(f"/v1/prompts/greeting?workspace_id={workspace}")
    assert (greeting["default_version"], greeting["prompt_version_description"]) == (2, "shorter greeting")


def run_prompts(admin: Client, *words: str, status: int = 0) -> str:
    env = {"PENSTOCK_URL": admin.gateway.base_url, "PENSTOCK_ADMIN_KEY": admin.key}
    done = run_penstock("prompts", *words, env=env)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_pulled_files_are_readable_and_do_not_differ(admin: Client, workspace: str, tmp_path: Path):
    folder = tmp_path / "prompts"
    assert "2 written, 0 unchanged" in run_prompts(admin, "pull", str(folder), "--workspace", workspace)
    assert sorted(path.name for path in folder.iterdir()) == ["chat.yaml", "text.yaml"]
    assert (folder / "text.yaml").read_text() == ("name: Text\nprovider: main\nmodel: gpt-4o\ntext: Hello {{name}}\n")
    assert "content: |-\n    Answer in {{language}}.\n    Be short.\n" in (folder / "chat.yaml").read_text()
    assert "0 written, 2 unchanged" in run_prompts(admin, "pull", str(folder), "--workspace", workspace)
    assert "no differences" in run_prompts(admin, "diff", str(folder), "--workspace", workspace)
    assert "0 saved, 2 unchanged" in run_prompts(admin, "push", str(folder), "--workspace", workspace)


@pytest.mark.usefixtures("workspace")
def test_one_workspace_must_be_chosen(admin: Client, tmp_path: Path):
    other = admin.create("/v1/workspaces", {"name": f"other {tmp_path.name}"})["slug"]
    admin.create("/v1/prompts/partials", {"name": "Tone", "string": "kind", "workspace_id": other})
    output = run_prompts(admin, "pull", str(tmp_path / "all"), status=1)
    assert "several workspaces have prompts; choose one: --workspace " in output
    assert not (tmp_path / "all").exists()
    assert "1 written" in run_prompts(admin, "pull", str(tmp_path / "all"), "--workspace", other)


def test_changed_and_new_files_become_versions(admin: Client, workspace: str, tmp_path: Path):
    folder, target_workspace = tmp_path / "prompts", ("--workspace", workspace)
    run_prompts(admin, "pull", str(folder), *target_workspace)
    file = folder / "text.yaml"
    file.write_text("name: Text\nprovider: main\ntext: |-\n  Dear {{name}},\n  hello\n")
    (folder / "new-one.yaml").write_text("name: New\nprovider: main\nmodel: m\nmessages: [{role: user, content: Hi}]\n")
    prompts = run_prompts(admin, "diff", str(folder), *target_workspace, status=2)
    assert "-text: Hello {{name}}" in prompts
    assert "-model: gpt-4o" in prompts
    assert "+name: New" in prompts
    saved = run_prompts(admin, "push", str(folder), *target_workspace, "--message", "polite", "--publish")
    assert saved.splitlines() == ["+ new-one", "~ text", "2 saved, 1 unchanged"]
    text = admin.read(f"/v1/prompts/text?workspace_id={workspace}")
    assert (text["string"], text["model"], text["prompt_version_description"]) == (
        "Dear {{name}},\nhello",
        None,
        "polite",
    )
    assert text["default_version"] == text["prompt_version"] == 2
    assert json.loads(admin.read(f"/v1/prompts/new-one?workspace_id={workspace}")["string"]) == [
        {"role": "user", "content": "Hi"}
    ]
    assert "no differences" in run_prompts(admin, "diff", str(folder), *target_workspace)


def test_version_is_not_published_unless_asked(admin: Client, workspace: str, tmp_path: Path):
    folder, target_workspace = tmp_path / "prompts", ("--workspace", workspace)
    run_prompts(admin, "pull", str(folder), *target_workspace)
    file = folder / "text.yaml"
    file.write_text(file.read_text().replace("Hello", "Goodbye"))
    run_prompts(admin, "push", str(folder), *target_workspace)
    text = admin.read(f"/v1/prompts/text?workspace_id={workspace}")
    assert (text["default_version"], text["prompt_version"]) == (1, 2)


def test_partials_and_labels_are_in_the_files(admin: Client, workspace: str, tmp_path: Path):
    folder, place, query = tmp_path / "prompts", ("--workspace", workspace), f"?workspace_id={workspace}"
    inner = {"name": "Inner", "slug": "a-inner", "string": "kind", "workspace_id": workspace}
    admin.create("/v1/prompts/partials", inner)
    admin.create("/v1/prompts/partials", {**inner, "name": "Tone", "slug": "tone", "string": "Be {{>a-inner}}."})
    version = admin.read(f"/v1/prompts/text{query}")["prompt_version_id"]
    expect_ok(admin.put(f"/v1/prompts/text/versions/{version}{query}", {"label_id": "staging"}))
    run_prompts(admin, "pull", str(folder), *place)
    assert (folder / "partials" / "tone.yaml").read_text() == "name: Tone\ntext: Be {{>a-inner}}.\n"
    file = folder / "text.yaml"
    assert "labels:\n- staging\ntext:" in file.read_text()
    assert "no differences" in run_prompts(admin, "diff", str(folder), *place)
    # A new version gets the labels of the file. The new partial `a-outer` includes `z-new`, so they cannot be saved in
    # the order of their names.
    file.write_text("name: Text\nprovider: main\nlabels: [staging, production]\ntext: New {{>a-outer}}\n")
    (folder / "partials" / "a-outer.yaml").write_text("name: Outer\ntext: '{{>z-new}} {{>tone}}'\n")
    (folder / "partials" / "z-new.yaml").write_text("name: Z\ntext: z\n")
    (folder / "partials" / "a-inner.yaml").write_text("name: Inner\ntext: kinder\n")
    saved = run_prompts(admin, "push", str(folder), *place, "--publish")
    assert saved.splitlines() == [
        *("~ partials/a-inner", "+ partials/z-new", "+ partials/a-outer", "~ text"),
        "4 saved, 2 unchanged",
    ]
    text = admin.read(f"/v1/prompts/text{query}")
    assert sorted(label["name"] for label in text["prompt_version_labels"]) == ["production", "staging"]
    assert text["default_version"] == text["prompt_version"] == 2
    assert admin.read(f"/v1/prompts/partials/a-inner{query}")["default_version"] == 2
    # Only labels change, so there is no new version. Without the field they stay as they are.
    file.write_text(file.read_text().replace("[staging, production]", "[production]"))
    assert "1 saved" in run_prompts(admin, "push", str(folder), *place, "--message", "labels")
    text = admin.read(f"/v1/prompts/text{query}")
    assert ([label["name"] for label in text["prompt_version_labels"]], text["prompt_version"]) == (["production"], 2)
    file.write_text(file.read_text().replace("labels: [production]\n", ""))
    assert "no differences" in run_prompts(admin, "diff", str(folder), *place)


def test_problems_of_all_files_are_reported_and_nothing_is_sent(admin: Client, workspace: str, tmp_path: Path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    files = {
        "good.yaml": "name: Good\ntext: x\n",
        "a b.yaml": "name: x\ntext: x\n",
        "list.yaml": "[1]\n",
        "keys.yaml": "name: x\ntext: x\ntemperature: 1\n",
        "both.yaml": "name: x\ntext: x\nmessages: []\n",
        "none.yaml": "name: x\n",
        "unnamed.yaml": "text: x\n",
        "role.yaml": "name: x\nmessages: [{content: x}]\n",
        "broken.yaml": "name: [\n",
        "bytes.yaml": "\udcff",
        "short.yml": "name: x\ntext: x\n",
        "labels.yaml": "name: x\ntext: x\nlabels: 1\n",
        "partials/messages.yaml": "name: x\nmessages: []\n",
    }
    (folder / "partials").mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, errors="surrogateescape")
    prompts = run_prompts(admin, "push", str(folder), "--workspace", workspace, status=1)
    for name in files.keys() - {"good.yaml"}:
        assert f"  {name}" in prompts, name
    assert "temperature: is not known; allowed: name, provider, model" in prompts
    for name in files:
        (folder / name).unlink()
    (folder / "good.yaml").write_text("name: Good\ntext: x\nlabels: [nowhere]\n")
    prompts = run_prompts(admin, "push", str(folder), "--workspace", workspace, status=1)
    assert (
        "good.yaml: labels: 'nowhere' is no label of the workspace; allowed: development, production, staging"
        in prompts
    )
    slugs = {row["slug"] for row in admin.read(f"/v1/prompts?workspace_id={workspace}")["data"]}
    assert slugs == {"chat", "text"}


def test_rejected_files_are_listed_and_the_others_are_saved(admin: Client, workspace: str, tmp_path: Path):
    folder = tmp_path / "prompts"
    folder.mkdir()
    deep = {"a-deep": 100, "b-deeper": 20_000}
    for name, depth in deep.items():
        (folder / f"{name}.yaml").write_text(f"name: Deep\ntext: x\nparameters: {'[' * depth}{']' * depth}\n")
    (folder / "c-broken.yaml").write_text("name: Broken\nprovider: main\ntext: 'Hello {{#name}}'\n")
    (folder / "d-open.yaml").write_text("name: Open\nprovider: main\nmessages: [{role: user, content: '{{x'}]\n")
    (folder / "d-role.yaml").write_text("name: Role\nprovider: main\nmessages: [{role: usr, content: x}]\n")
    (folder / "e-good.yaml").write_text("name: Good\nprovider: main\nmodel: gpt-4o\ntext: Hello\n")
    output = run_prompts(admin, "push", str(folder), "--workspace", workspace, status=1)
    expected = [
        "+ e-good",
        "1 saved, 0 unchanged",
        *(f"{name}.yaml: nests too deep; at most 64 levels" for name in deep),
        "c-broken.yaml: POST /v1/prompts: 400",
        "the section `name` is not closed",
        "d-open.yaml: POST /v1/prompts: 400",
        "the tag is not closed",
        "d-role.yaml: POST /v1/prompts: 400",
        "did you mean `user`?",
    ]
    assert [text for text in expected if text not in output] == [], output
    slugs = {row["slug"] for row in admin.read(f"/v1/prompts?workspace_id={workspace}")["data"]}
    assert slugs == {"chat", "text", "e-good"}
    output = run_prompts(admin, "diff", str(folder), "--workspace", workspace, status=1)
    for text in ("file/d-open.yaml", "a-deep.yaml: nests too deep"):
        assert text in output, output


def test_missing_folder_is_named(admin: Client, tmp_path: Path):
    assert "cannot read" in run_prompts(admin, "push", str(tmp_path / "none"), status=1)
