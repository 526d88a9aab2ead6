"""The programs of a Kubernetes cluster, built once from Go modules and kept in the user's cache.

No container engine and no download of ready-made programs is needed: `binaries/` beside this library holds a go.mod
with `tool` lines and a go.sum for each set, so that every byte is pinned and checked by Go. What comes out is kept in
${XDG_CACHE_HOME:-~/.cache}/shoal-test/<set>-<hash>, where the hash covers go.mod, go.sum and the way of building. The
first build takes some ten minutes on two cores; later runs start at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

MODULES: Final = Path(__file__).parents[2] / "binaries"
KUBERNETES_VERSION: Final = "1.34.4"
_VERSION_PACKAGE: Final = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.split(".")

BUILD_DEADLINE_S: Final = 3600.0
_BUILDING: Final = ".building-"


class GoIsMissing(Exception):
    """There is no Go tool chain, so that the programs cannot be built; the text says what to do."""


class BuildFailed(Exception):
    """Go could not build a program; the text ends with what Go said."""


@dataclass(frozen=True, slots=True)
class BinarySet:
    """Programs that are built together from one module: program name to Go package."""

    name: str
    module: Path
    packages: dict[str, str]
    ldflags: str = "-s -w"
    tags: str = ""

    def directory(self) -> Path:
        """Where the built programs are kept."""
        digest = hashlib.sha256()
        for part in ("go.mod", "go.sum"):
            digest.update((self.module / part).read_bytes())
        digest.update(f"{self.ldflags}{self.tags}".encode())
        return cache_root() / f"{self.name}-{digest.hexdigest()[:12]}"


# One module for all of Kubernetes: the sets differ in what is built, and share the folder of the cache.
_KUBERNETES_LDFLAGS: Final = (
    f"-s -w -X {_VERSION_PACKAGE}.gitVersion=v{KUBERNETES_VERSION}"
    f" -X {_VERSION_PACKAGE}.gitMajor={_MAJOR} -X {_VERSION_PACKAGE}.gitMinor={_MINOR}"
)
CONTROL_PLANE: Final = BinarySet(
    name="kubernetes",
    module=MODULES / "kubernetes",
    packages={
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
        "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    },
    ldflags=_KUBERNETES_LDFLAGS,
)
NODE: Final = BinarySet(
    name="kubernetes",
    module=MODULES / "kubernetes",
    packages={
        "kubelet": "k8s.io/kubernetes/cmd/kubelet",
        "kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy",
    },
    ldflags=_KUBERNETES_LDFLAGS,
)
HELM: Final = BinarySet(
    name="helm",
    module=MODULES / "helm",
    packages={"helm": "helm.sh/helm/v4/cmd/helm"},
)
COREDNS: Final = BinarySet(
    name="coredns",
    module=MODULES / "coredns",
    packages={"coredns": "github.com/coredns/coredns"},
)
KUBE_ROUTER: Final = BinarySet(
    name="kube-router",
    module=MODULES / "kube-router",
    packages={"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"},
)
# Rules and queries are checked, nothing is discovered: without the clients of thirty clouds it builds in a minute.
PROMETHEUS: Final = BinarySet(
    name="prometheus",
    module=MODULES / "prometheus",
    packages={"promtool": "github.com/prometheus/prometheus/cmd/promtool"},
    tags="remove_all_sd",
)


def cache_root() -> Path:
    """The folder of the user's cache that holds everything built here."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "shoal-test"


def missing(wanted: BinarySet) -> tuple[str, ...]:
    """The programs of the set that are not built yet."""
    directory = wanted.directory()
    return tuple(program for program in wanted.packages if not (directory / program).is_file())


def ensure(wanted: BinarySet) -> Path:
    """The folder with the set's programs, which are built when they are not there.

    Raises GoIsMissing when something must be built and there is no Go, BuildFailed when Go cannot build it.
    """
    directory = wanted.directory()
    if not missing(wanted):
        return directory
    go = shutil.which("go")
    if go is None:
        raise GoIsMissing(
            f"no `go` on the PATH to build {', '.join(missing(wanted))} with: install Go 1.26 (https://go.dev/dl)"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with _lock(directory / "lock"):
        # Another run may have built them while this one waited for the lock.
        todo = missing(wanted)
        if todo:
            for remains in directory.glob(f"{_BUILDING}*"):
                # Of a build that was killed: nobody else builds here while the lock is held.
                shutil.rmtree(remains)
            _build(go, wanted, todo)
    return directory


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the lock: a second run waits for the build of the first. The lock ends with its process, in whatever way."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(go: str, wanted: BinarySet, programs: tuple[str, ...]) -> None:
    """Build into a temporary folder beside the final one, then rename each program into its place."""
    directory = wanted.directory()
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    with TemporaryDirectory(prefix=_BUILDING, dir=directory) as building:
        # Low priority: the person at this computer, and tests that run meanwhile, come first.
        command = ["nice", "-n", "19", go, "build", "-trimpath", "-ldflags", wanted.ldflags, "-o", f"{building}/"]
        command += [f"-tags={wanted.tags}"] if wanted.tags else []
        command += [wanted.packages[program] for program in programs]
        try:
            done = subprocess.run(
                command,
                cwd=wanted.module,
                env=environment,
                capture_output=True,
                text=True,
                timeout=BUILD_DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BuildFailed(f"building {', '.join(programs)} took longer than {BUILD_DEADLINE_S:.0f} s") from None
        if done.returncode != 0:
            last_words = "\n".join(done.stderr.splitlines()[-15:])
            raise BuildFailed(f"go could not build {', '.join(programs)} in {wanted.module}:\n{last_words}")
        for program in programs:
            (Path(building) / _output_name(wanted.packages[program])).rename(directory / program)


def _output_name(package: str) -> str:
    """The file name that `go build` gives a program: the last element of its path that is no version."""
    parts = package.split("/")
    return parts[-2] if parts[-1].startswith("v") and parts[-1][1:].isdigit() else parts[-1]
