"""Fixtures of every test: a real Kubernetes control plane for those that ask for one."""

from __future__ import annotations

pytest_plugins = ["testcluster.plugin"]
