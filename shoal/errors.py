"""The errors that more than one part of shoal raises or handles.

    ShoalError                      a message for a person: what, where, what to do
    ├── UsageError                  the caller's input is wrong (exit 2)
    │   ├── ManifestError           a ShardedModel or a model directory's manifest cannot be used
    │   └── CheckpointError         a GGUF file or a Hugging Face directory cannot be used
    ├── PlanError                   no plan fits, with the sum for each node
    ├── IntegrityError              bytes differ from what their digest says
    ├── ResourceError               the machine lacks something: disk, memory, a port, a device
    └── StageError                  a stage refused or failed (see shoal.wire.errors for the tree below)

The command line prints `str(error)` as one line and exits with `exit_code`; a traceback is a defect.
"""

from __future__ import annotations

from typing import ClassVar


class ShoalError(Exception):
    """Base of every error that is meant for a person: `str(error)` is one clear line."""

    exit_code: ClassVar[int] = 1


class UsageError(ShoalError):
    """The caller's input is wrong; nothing was done."""

    exit_code = 2


class ManifestError(UsageError):
    """A ShardedModel, or a model directory's manifest, cannot be used as it is."""


class CheckpointError(UsageError):
    """A GGUF file or a Hugging Face directory is damaged or of a kind that shoal does not know."""


class PlanError(ShoalError):
    """No plan satisfies the spec on these nodes; the message carries the sums."""

    exit_code = 3


class IntegrityError(ShoalError):
    """A file's bytes differ from what its digest says."""

    exit_code = 4


class ResourceError(ShoalError):
    """The machine lacks something: disk space, memory, a free port, a device."""

    exit_code = 5


class StageError(ShoalError):
    """A stage refused a call or failed."""

    exit_code = 6
