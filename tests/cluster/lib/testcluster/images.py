"""The product's images, built from this checkout by its own Dockerfiles.

No registry and no container engine: the base is Debian as debootstrap makes it, and buildah builds in a chroot. Buildah
keeps layers, so that only what changed is made anew.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from shoal import __version__
from testcluster.binaries import cache_root
from testcluster.run import RunFailed, run

ROOT: Final = Path(__file__).parents[4]
REGISTRY: Final = "ghcr.io/shoal-dev"
SUITE: Final = "trixie"
DEBIAN: Final = "http://deb.debian.org/debian"
BASE: Final = f"localhost/shoal-test-base:{SUITE}-1"
BUILD_S: Final = 1800.0
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Image:
    """A target of a Dockerfile; its name is that of the image."""

    name: str
    file: str

    @property
    def reference(self) -> str:
        """As the chart's values name it."""
        return f"{REGISTRY}/{self.name}:{__version__}"


OPERATOR: Final = Image("operator", "operator/Dockerfile")
ROUTER: Final = Image("router", "router/Dockerfile")
GATEWAY: Final = Image("gateway", "cli/Dockerfile")
COMPILE: Final = Image("compile", "stage_image/Dockerfile")
STAGE: Final = Image("stage", "stage_image/Dockerfile")
ALL: Final = (OPERATOR, ROUTER, GATEWAY, COMPILE, STAGE)


def base() -> str:
    """An image of Debian with Python, made once; its reference.

    It trusts whom this machine trusts: where downloads come through a proxy, its authority is among them.
    """
    if _exists(BASE):
        return BASE
    cache_root().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache_root()) as work:
        root = Path(work) / "root"
        packages = "python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", f"--include={packages}", SUITE, root, DEBIAN, deadline_s=BUILD_S)
        inside = root / _CERTIFICATES.relative_to("/")
        shutil.copyfile(_CERTIFICATES, inside)
        for left in (root / "var/cache/apt/archives").glob("*.deb"):
            left.unlink()
        container = run("buildah", "from", "scratch").strip()
        try:
            run("buildah", "add", "--quiet", container, root, "/", deadline_s=BUILD_S)
            trust = [f"--env={name}={_CERTIFICATES}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
            run("buildah", "config", f"--env=PATH={_PATH}", *trust, container)
            run("buildah", "commit", "--quiet", container, BASE, deadline_s=BUILD_S)
        finally:
            run("buildah", "rm", container)
    return BASE


def build(image: Image) -> str:
    """Build one image as its users do, on the tests' base; its reference."""
    run(
        "buildah", "build", "--quiet", "--layers", "--isolation=chroot", f"--build-arg=BASE={base()}",
        f"--build-arg=VERSION={__version__}", f"--target={image.name}", f"--file={image.file}",
        f"--tag={image.reference}", ".",
        folder=ROOT, deadline_s=BUILD_S,
    )  # fmt: skip
    return image.reference


def size(reference: str) -> int:
    """Bytes of an image with its base, unpacked."""
    with mounted(reference) as root:
        return sum(file.lstat().st_size for file in root.rglob("*") if file.is_file() and not file.is_symlink())


@contextmanager
def mounted(reference: str) -> Iterator[Path]:
    """The files of an image, for as long as they are looked at."""
    container = run("buildah", "from", "--pull-never", reference).strip()
    try:
        yield Path(run("buildah", "mount", container).strip())
    finally:
        run("buildah", "umount", container)
        run("buildah", "rm", container)


def configuration(reference: str) -> dict[str, object]:
    """What the image says of itself: user, environment, command, labels."""
    said: dict[str, object] = json.loads(run("buildah", "inspect", "--type=image", reference))["OCIv1"]["config"]
    return said


def _exists(reference: str) -> bool:
    try:
        return bool(run("buildah", "images", "--quiet", reference).strip())
    except RunFailed:
        return False


def missing_tools() -> list[str]:
    """What this machine lacks to build images with, as Debian calls the packages."""
    return [program for program in ("debootstrap", "buildah") if shutil.which(program) is None]


def is_root() -> bool:
    """Whether this is the superuser, whom namespaces and mounts take."""
    return os.geteuid() == 0
