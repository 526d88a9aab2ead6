"""A pytest plugin: the product's images, built once for the session.

What is missing on this machine is said in the reason of the skip; with CI=true the tests fail instead.
"""

from __future__ import annotations

import os

import pytest

from testcluster import images


def _missing() -> str:
    """Why this machine cannot build images; empty when it can."""
    if not images.is_root():
        return "building images in a chroot needs root"
    lacking = images.missing_tools()
    return f"images need Debian's {' '.join(lacking)}: sudo apt install them" if lacking else ""


@pytest.fixture(scope="session")
def built() -> None:
    """The product's images, built from this checkout."""
    reason = _missing()
    if reason and os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)
    for image in images.ALL:
        images.build(image)
