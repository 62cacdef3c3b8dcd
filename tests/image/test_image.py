"""The container image: built from the Containerfile, started without rights on a read-only root file system."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.image.container import BUILD_SECONDS, ImageBuilder, container_command
from tests.integration.raw_http import send_raw_request
from tests.processes import Program, free_port, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.image, pytest.mark.timeout(BUILD_SECONDS)]

MAX_COMPRESSED_BYTES = 130 * 1000**2
# Some platforms run containers with a random user id. Only the group, 0, is known.
RANDOM_USER = "1000690000:0"
# Python code that writes to the root file system, which must fail.
WRITE_TO_ROOT = "open('/opt/penstock/written', 'w')"


class Container:
    """A container of the image, with a volume."""

    def __init__(self, builder: ImageBuilder, root: Path, folder: Path, user: str) -> None:
        self.config = builder.read_config()
        self.port = free_port()
        self._root, self._folder, self._user = root, folder, user or self.config["User"]
        self.volume = folder / "volume"
        if not self.volume.exists():
            self.volume.mkdir()
            os.chown(self.volume, 65532, 0)
            self.volume.chmod(0o770)

    def command(self, *words: str, config: dict[str, Any] | None = None) -> list[str]:
        mount_point = self._folder / "root"
        mount_point.mkdir(exist_ok=True)
        return container_command(config or self.config, self._root, self.volume, mount_point, *words, user=self._user)

    @property
    def environment(self) -> dict[str, str]:
        declared = dict(line.split("=", 1) for line in self.config["Env"])
        # `PATH` also has folders of this machine, whose programs enter the container.
        path = f"{declared['PATH']}:/usr/sbin:/bin:/sbin"
        return {**declared, "PATH": path, "PENSTOCK_SERVER_PORT": str(self.port)}

    def run(self, *words: str, config: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words, config=config),
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
        )

    def pipe(self, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command, environ = self.command(*words), self.environment
        return subprocess.run(command, check=False, capture_output=True, timeout=60, env=environ, input=data)

    def serve(self, log: Path) -> Program:
        program = Program(self.command(), log, env=self.environment, cwd=self._folder)
        wait_for("ready", lambda: (program.check_alive(), self.status("/ready") == 200)[1] or None, 60)
        return program

    def status(self, path: str, key: str = "") -> int:
        headers = {"x-gateway-api-key": key} if key else {}
        try:
            return send_raw_request(f"http://127.0.0.1:{self.port}", path, headers=headers).status
        except OSError:
            return 0


@pytest.fixture(scope="module")
def builder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageBuilder]:
    builder = ImageBuilder(tmp_path_factory.mktemp("image"))
    builder.build(wheel)
    yield builder
    builder.delete()


@pytest.fixture(scope="module")
def root(builder: ImageBuilder) -> Path:
    return builder.mount()


@pytest.mark.parametrize("user", ["", RANDOM_USER])
def test_serves_without_rights_and_keeps_its_data_in_the_volume(
    builder: ImageBuilder, root: Path, tmp_path: Path, user: str
):
    container = Container(builder, root, tmp_path, user)
    expected = int((user or container.config["User"]).partition(":")[0])
    program = container.serve(tmp_path / "first.log")
    try:
        key = next(line.split(": ")[1] for line in program.read_output().splitlines() if line.startswith("admin key"))
        users = {Path(f"/proc/{pid}").stat().st_uid for pid in program.session_processes()}
        health = container.run(*container.config["Healthcheck"]["Test"][2:])
        written = container.run("-c", WRITE_TO_ROOT, config={**container.config, "Entrypoint": ["python3"]})
        status = wait_for("management", lambda: container.status("/v1/workspaces", key) or None)
        assert program.stop() == 0
    finally:
        program.kill()
    assert users == {expected}
    assert health.returncode == 0, health.stdout + health.stderr
    assert "Read-only file system" in written.stderr
    assert status == 200
    program = container.serve(tmp_path / "second.log")
    try:
        assert wait_for("management", lambda: container.status("/v1/workspaces", key) or None) == 200
        assert "admin key" not in program.read_output()
    finally:
        program.kill()


def test_backup_goes_through_pipes_into_another_volume(builder: ImageBuilder, root: Path, tmp_path: Path):
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = (Container(builder, root, tmp_path / name, "") for name in ("old", "new"))
    assert old.run("init").returncode == 0
    backup = old.pipe("backup", "-")
    assert backup.returncode == 0, backup.stderr
    # The master key is not in the archive. It belongs to the user of the container.
    for name in ("penstock-data", "penstock-data/penstock.key"):
        source, target = old.volume / name, new.volume / name
        if source.is_dir():
            target.mkdir(mode=0o700)
        else:
            target.write_bytes(source.read_bytes())
            target.chmod(0o600)
        os.chown(target, 65532, 0)
    restored = new.pipe("restore", "-", data=backup.stdout)
    assert restored.returncode == 0, restored.stderr
    assert restored.stdout.startswith(b"restored ")
    assert new.run("init").stdout.startswith("the store is ready")


def test_has_no_shell_and_no_package_manager(root: Path):
    for name in ("sh", "bash", "apt-get", "dpkg", "pip", "cc"):
        assert not [folder for folder in ("bin", "usr/bin", "opt/penstock/bin") if (root / folder / name).exists()]


def test_compressed_image_is_small(builder: ImageBuilder):
    size = builder.compressed_bytes()
    print(f"compressed image: {size / 1000**2:.1f} MB")
    assert size <= MAX_COMPRESSED_BYTES
