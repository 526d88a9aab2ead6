"""`python -m shoal_stage compile|serve|draft|doctor|agent …`: what the stage image runs, imported when asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from shoal.errors import ResourceError, ShoalError, UsageError
from shoal.leave import leave

_USAGE = "usage: python -m shoal_stage compile|serve|draft|doctor|agent …"


def main(argv: Sequence[str]) -> int:
    """Run one command; errors become one line and an exit code."""
    try:
        match argv:
            case ["compile", *rest]:
                _compile(rest)
            case ["serve", *rest]:
                from shoal_stage.server.main import serve

                return serve(rest)
            case ["draft", *rest]:
                from shoal_stage.draft.main import draft

                return draft(rest)
            case ["doctor", *rest]:
                from shoal_stage.doctor.command import doctor_command

                doctor_command(rest)
            case ["agent", *rest]:
                from shoal_stage.agent.command import agent_command

                agent_command(rest)
            case ["-h" | "--help"]:
                print(_USAGE)  # noqa: T201
            case _:
                raise UsageError(_USAGE)
    except ShoalError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _compile(arguments: Sequence[str]) -> None:
    """What a disk or a file refuses is no defect of the compiler: a line, like any other error."""
    try:
        from shoal_stage.compile.command import compile_command

        compile_command(arguments)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"this image has no compiler (no {error.name}): use the image compile, or pip install 'shoal[compile]'"
        ) from error
    except OSError as error:
        raise ResourceError(f"{error.filename or 'the compiler'}: {error.strerror or error}") from error


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
