"""A peer that cannot be had on this machine: a benchmark reports it as missing and goes on without it."""

from __future__ import annotations

from shoal.errors import ResourceError


class PeerMissing(ResourceError):
    """The peer cannot be installed, built or started here; the message says why."""
