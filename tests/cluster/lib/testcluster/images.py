"""The product's images, built from this checkout by its own Dockerfiles, and a node's disk that has them.

No registry and no container engine: the base is Debian as debootstrap makes it, buildah builds in a chroot, and a
containerd of its own unpacks the result once into a seed, from which each node's disk is linked. Buildah keeps layers,
and the cache keeps seeds by what is in them, so that only what changed is made anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from shoal import __version__
from testcluster.binaries import cache_root
from testcluster.processes import Process, wait_until
from testcluster.run import RunFailed, run

ROOT: Final = Path(__file__).parents[4]
REGISTRY: Final = "ghcr.io/shoal-dev"
OFFICE_REGISTRY: Final = "registry.office.example/shoal"
"""As the guide for offices calls it; nodes have the images under both names."""
SUITE: Final = "trixie"
DEBIAN: Final = "http://deb.debian.org/debian"
BASE: Final = f"localhost/shoal-test-base:{SUITE}-1"
PAUSE: Final = "shoal.test/pause:1"
BUILD_S: Final = 1800.0
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_BUSYBOX: Final = Path("/bin/busybox")


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
ON_NODES: Final = (OPERATOR, ROUTER, COMPILE, STAGE)


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


def identity(reference: str) -> str:
    """The digest of what an image is."""
    return run("buildah", "images", "--no-trunc", "--quiet", reference).strip()


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


def seed(index_url: str) -> Path:
    """A containerd's folder that holds the images; those that changed since the last time are put in anew.

    Compile Jobs find the package index of this machine, because pods reach nothing beyond the bridge.
    """
    wanted = {image.name: f"{index_url} {identity(build(image))}" for image in ON_NODES}
    folder, held = cache_root() / "seed", cache_root() / "seed.json"
    there: dict[str, str] = json.loads(held.read_text()) if held.exists() and folder.exists() else {}
    if there == wanted:
        return folder
    held.unlink(missing_ok=True)  # until it is whole again
    with TemporaryDirectory(dir=cache_root()) as work:
        archives = [] if there else [_pause(Path(work))]
        changed = [image for image in ON_NODES if there.get(image.name) != wanted[image.name]]
        for image in changed:
            archive = Path(work) / f"{image.name}.tar"
            source = _with_index(image, index_url) if image is COMPILE else image.reference
            run("buildah", "push", "--quiet", source, f"docker-archive:{archive}:{image.reference}", deadline_s=BUILD_S)
            archives.append(archive)
        if not there:
            shutil.rmtree(folder, ignore_errors=True)
        _unpack(archives, changed, folder, Path(work))
    held.write_text(json.dumps(wanted))
    return folder


def _with_index(image: Image, index_url: str) -> str:
    """The image with the package index in its environment, as an office without the Internet would have it."""
    reference = f"localhost/shoal-test-{image.name}:1"
    container = run("buildah", "from", "--pull-never", image.reference).strip()
    try:
        host = index_url.split("/")[2].partition(":")[0]
        given = {"PIP_INDEX_URL": index_url, "PIP_TRUSTED_HOST": host}
        run("buildah", "config", *(f"--env={name}={value}" for name, value in given.items()), container)
        run("buildah", "commit", "--quiet", container, reference, deadline_s=BUILD_S)
    finally:
        run("buildah", "rm", container)
    return reference


def _unpack(archives: list[Path], changed: list[Image], into: Path, work: Path) -> None:
    """Have a containerd import the archives into its folder, and name the images as the guide does, too."""
    socket, settings = work / "containerd.sock", work / "containerd.toml"
    settings.write_text(
        f'version = 2\nroot = "{into}"\nstate = "{work / "state"}"\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\n  address = "{socket}"\n'
        f'[plugins."io.containerd.internal.v1.opt"]\n  path = "{work / "opt"}"\n'
    )
    engine = Process.start("containerd", ["containerd", "--config", str(settings)], log=work / "containerd.log")
    ctr = ["ctr", "--address", str(socket), "--namespace", "k8s.io"]
    try:

        def answers() -> bool:
            engine.check_running()
            try:
                return bool(run(*ctr, "version"))
            except RunFailed:
                return False

        wait_until(answers, what="containerd", deadline_s=60.0)
        for archive in archives:
            run(*ctr, "images", "import", archive, deadline_s=BUILD_S)
            archive.unlink()
        for image in changed:
            theirs = image.reference.replace(REGISTRY, OFFICE_REGISTRY)
            run(*ctr, "images", "tag", "--force", image.reference, theirs)
    finally:
        engine.stop()


def _pause(folder: Path) -> Path:
    """The image of every pod's first process, which does nothing: a static busybox, as an OCI archive."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        program = _BUSYBOX.read_bytes()
        entry = tarfile.TarInfo("bin/sleep")
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    files = blob(layer.getvalue(), "layer.v1.tar")
    told = {"Entrypoint": ["/bin/sleep", "infinity"]}
    about = {"architecture": "amd64", "os": "linux", "config": told, "rootfs": {"type": "layers"}}
    about["rootfs"] |= {"diff_ids": [files["digest"]]}  # type: ignore[operator]
    config = blob(json.dumps(about).encode(), "config.v1+json")
    manifest = blob(json.dumps({"schemaVersion": 2, "config": config, "layers": [files]}).encode(), "manifest.v1+json")
    manifest["annotations"] = {"io.containerd.image.name": PAUSE, "org.opencontainers.image.ref.name": "1"}
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode()
    archive = folder / "pause.tar"
    with tarfile.open(archive, "w") as tar:
        for name, data in blobs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return archive


def _exists(reference: str) -> bool:
    try:
        return bool(identity(reference))
    except RunFailed:
        return False


def missing_tools() -> list[str]:
    """What this machine lacks to build images and to run nodes, as Debian calls the packages."""
    needed = {
        "debootstrap": "debootstrap", "buildah": "buildah", "containerd": "containerd", "ctr": "containerd",
        "runc": "runc", "ipset": "ipset", "iptables": "iptables", "ip": "iproute2", "nsenter": "util-linux",
        "nft": "nftables",
    }  # fmt: skip
    lacking = {package for program, package in needed.items() if shutil.which(program) is None}
    if not _BUSYBOX.exists():
        lacking.add("busybox-static")
    if not Path("/usr/lib/cni/bridge").exists():
        lacking.add("containernetworking-plugins")
    return sorted(lacking)


def is_root() -> bool:
    """Whether this is the superuser, whom namespaces and mounts take."""
    return os.geteuid() == 0


def impossible() -> str:
    """Why this machine cannot build images; empty when it can."""
    if not is_root():
        return "building images in a chroot needs root"
    lacking = missing_tools()
    return f"images and nodes need Debian's {' '.join(lacking)}: sudo apt install them" if lacking else ""
