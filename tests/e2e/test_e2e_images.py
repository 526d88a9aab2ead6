"""The images are what their Dockerfiles promise: small, of their part only, for nobody in particular to run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testcluster import images
from testcluster.images import ALL, COMPILE, GATEWAY, OPERATOR, ROUTER, STAGE, Image
from testcluster.run import RunFailed, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900, func_only=True)]
MIB = 1 << 20

# Packages of the repository, and libraries, that each image has; every other one of them it must lack.
CLUSTER = {"kopf", "kubernetes", "cryptography"}
API = {"fastapi", "uvicorn", "tokenizers", "huggingface_hub"}
PARTS = {
    OPERATOR: ({"shoal", "shoal_operator"}, CLUSTER),
    ROUTER: ({"shoal", "shoal_router"}, API),
    GATEWAY: ({"shoal", "shoal_router", "shoal_operator", "shoal_cli"}, API | CLUSTER),
    STAGE: ({"shoal", "shoal_stage"}, {"openvino"}),
    COMPILE: ({"shoal", "shoal_stage"}, {"openvino", "gguf", "safetensors", "tokenizers", "huggingface_hub"}),
}
LIBRARIES = set().union(*(libraries for _, libraries in PARTS.values()))
# What a part adds to its base, unpacked, at most.
MOST = {OPERATOR: 300 * MIB, ROUTER: 200 * MIB, GATEWAY: 350 * MIB, STAGE: 400 * MIB, COMPILE: 550 * MIB}


@pytest.mark.parametrize("image", ALL, ids=lambda image: image.name)
def test_an_image_holds_its_part_and_nothing_else(built: None, image: Image, record_property: Any) -> None:
    packages, libraries = PARTS[image]
    with images.mounted(image.reference) as root:
        assert {each.name for each in (root / "opt/shoal/app").iterdir()} == packages
        (site,) = (root / "opt/shoal/lib").glob("python3.*/site-packages")
        assert {name for name in LIBRARIES if (site / name).exists()} == libraries
        bill = json.loads((root / "opt/shoal/sbom.cdx.json").read_text())
        named = {each["name"].replace("-", "_").lower() for each in bill["components"]}
        assert {each.lower() for each in libraries} <= named
        writable = [each for each in (root / "opt/shoal").rglob("*") if each.lstat().st_mode & 0o002]
        assert [each for each in writable if not each.is_symlink()] == []
    own = images.size(image.reference) - images.size(images.BASE)
    print(f"{image.name}: {own // MIB} MiB over its base")
    assert own < MOST[image]


@pytest.mark.parametrize("image", ALL, ids=lambda image: image.name)
def test_an_image_runs_as_nobody_and_says_what_it_is(built: None, image: Image) -> None:
    said = images.configuration(image.reference)
    user, labels = said["User"], said["Labels"]
    assert user in ("65532:65532", "10001:10001")
    assert isinstance(labels, dict)
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert {"title", "description", "version", "revision"} <= {each.rpartition(".")[2] for each in labels}
    assert "Healthcheck" not in said


def test_a_stage_without_the_compiler_says_so_in_one_line(built: None) -> None:
    container = run("buildah", "from", "--pull-never", STAGE.reference).strip()
    try:
        command = ["python", "-m", "shoal_stage", "compile", "x.gguf", "--output", "/tmp/x"]
        with pytest.raises(RunFailed, match=r"error: this image has no compiler .*: use the image compile"):
            run("buildah", "run", "--isolation=chroot", container, "--", *command)
    finally:
        run("buildah", "rm", container)


def test_the_gateways_command_runs(built: None) -> None:
    container = run("buildah", "from", "--pull-never", GATEWAY.reference).strip()
    try:
        command = ["python", "-m", "shoal_cli.main", "gateway", "--cluster"]
        with pytest.raises(RunFailed, match="error: no cluster to connect to"):
            run("buildah", "run", "--isolation=chroot", container, "--", *command)
    finally:
        run("buildah", "rm", container)
