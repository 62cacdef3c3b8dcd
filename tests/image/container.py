"""Builds the container image with buildah, without a registry, and runs it as a container engine would: with the user
and environment that the image names, its root file system read-only, and one volume.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from tests.shape.repository import ROOT, read_text

CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
DEBIAN, BUILD, IMAGE = "localhost/debian:bookworm", "localhost/penstock-build", "localhost/penstock"
CONTAINERFILE = "deploy/container/Containerfile"
BUILD_SECONDS = 900
# Installs the packages of the lock and the wheel, as the stage `build` of the Containerfile does after it built the
# wheel.
INSTALL = """
python3 -m venv /build
python3 -m venv --without-pip /opt/penstock
/build/bin/pip --python /opt/penstock/bin/python3 install --quiet --no-cache-dir --require-hashes --no-deps -r /wheels/run.txt
/build/bin/pip --python /opt/penstock/bin/python3 uninstall --quiet --yes maturin
/build/bin/pip --python /opt/penstock/bin/python3 install --quiet --no-cache-dir --no-deps /wheels/*.whl
rm -rf /wheels /build
"""
# Arguments: root file system, empty folder to mount it at, folder of the volume.
MOUNT = """
set -e
mount --bind "$1" "$2"
mount -o remount,bind,ro "$2"
mount --bind "$3" "$2{state}"
mount -t tmpfs tmpfs "$2/tmp"
mount -t proc proc "$2/proc"
mount --rbind /dev "$2/dev"
root=$2
shift 3
exec chroot --userspec={user} "$root" "$@"
"""


def read_trim_step() -> str:
    """Returns the step of the Containerfile that deletes files that the image does not need, and tests that the rest
    works.
    """
    text = read_text(CONTAINERFILE)
    begin = text.index("RUN find /opt/penstock")
    return text[begin : text.index("\n\n", begin)].removeprefix("RUN ")


class ImageBuilder:
    """Builds images with buildah, and stores them in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        """Creates no image yet."""
        self._folder = folder

    def run_buildah(self, *words: str) -> str:
        """Returns the output of a command of buildah. Raises `AssertionError` with its messages if it fails."""
        done = subprocess.run(
            ["buildah", "--root", self._folder / "images", "--runroot", self._folder / "run", *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            cwd=ROOT,
            # `vfs` needs no file system of the kernel, and `chroot` no namespaces of users.
            env={**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"},
        )
        assert done.returncode == 0, f"buildah {shlex.join(words)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout.strip()

    def build(self, wheel: Path) -> None:
        """Builds the image of the Containerfile. Its stage `build`, which compiles for minutes, is replaced by an image
        with the same folder: the packages of the lock, and the wheel.
        """
        archive = self._folder / "debian.tar"
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=apt", "--include=ca-certificates", "bookworm", archive],
            check=True,
            timeout=BUILD_SECONDS,
        )
        container = self.run_buildah("from", "scratch")
        self.run_buildah("add", "--quiet", container, str(archive), "/")
        self.run_buildah("commit", "--quiet", "--rm", container, DEBIAN)
        archive.unlink()
        container = self.run_buildah("from", DEBIAN)
        self._run_in(
            container, "apt-get update -qq; apt-get install -yqq --no-install-recommends binutils python3-venv"
        )
        self.run_buildah("copy", container, str(wheel), str(ROOT / "requirements/run.txt"), "/wheels/")
        self._run_in(container, INSTALL + read_trim_step())
        self.run_buildah("commit", "--quiet", "--rm", container, BUILD)
        self.run_buildah(
            "build",
            f"--build-arg=DEBIAN={DEBIAN}",
            f"--build-context=build=container-image://{BUILD}",
            "--format=docker",
            f"--tag={IMAGE}",
            f"--file={CONTAINERFILE}",
            ".",
        )

    def _run_in(self, container: str, script: str) -> None:
        # Packages may come through a proxy whose certificate authority only this machine knows.
        bundle = [f"--volume={CA_BUNDLE}:{CA_BUNDLE}:ro", f"--env=PIP_CERT={CA_BUNDLE}"] if CA_BUNDLE.exists() else []
        self.run_buildah("run", *bundle, container, "--", "sh", "-ec", script)

    def read_config(self) -> dict[str, Any]:
        """Returns the configuration of the image, as container engines read it."""
        return json.loads(self.run_buildah("inspect", "--type=image", IMAGE))["Docker"]["config"]

    def mount(self) -> Path:
        """Returns the root file system of a container of the image."""
        return Path(self.run_buildah("mount", self.run_buildah("from", IMAGE)))

    def compressed_bytes(self) -> int:
        """Returns how many bytes a registry would send."""
        folder = self._folder / "compressed"
        self.run_buildah("push", "--quiet", "--compression-format=gzip", IMAGE, f"oci:{folder}:latest")
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    def delete(self) -> None:
        """Deletes all containers and images."""
        self.run_buildah("rm", "--all")
        self.run_buildah("rmi", "--all", "--force")


def container_command(
    config: dict[str, Any], root: Path, volume: Path, mount_point: Path, *command: str, user: str = ""
) -> list[str]:
    """Returns a command that runs `command` in a container, or what the image runs. The environment is not passed on:
    give it to the process that runs the command.
    """
    script = MOUNT.format(state=config["WorkingDir"], user=user or config["User"])
    words = [*config["Entrypoint"], *(command or config["Cmd"])]
    # `chroot` has no option for the working folder.
    enter = [
        "/usr/bin/python3",
        "-c",
        f"import os, sys; os.chdir({config['WorkingDir']!r}); os.execvp(sys.argv[1], sys.argv[1:])",
    ]
    paths = (str(root), str(mount_point), str(volume))
    return ["unshare", "--mount", "/bin/sh", "-c", script, "sh", *paths, *enter, *words]
