"""Entry point of the `shoal` command, and the one place where errors become exit codes.

    0         done
    1         failed for a reason that has no code of its own, or a defect (the log file it names has the traceback)
    2         the input is wrong: an option, a manifest, a checkpoint
    3         no plan fits
    4         bytes differ from their digest
    5         the machine lacks something: disk, memory, a port, a device, a file
    6         a stage or the router failed
    128 + n   stopped by signal n: 130 after Ctrl-C, 143 after SIGTERM

Every failure is one line on stderr that starts with `shoal: error:`. A traceback on the terminal is a defect.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from types import FrameType

# What the machine refuses, rather than a defect: these need no traceback.
_MACHINE_SAYS_NO = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EMFILE,
    errno.ENOENT,
    errno.ENOSPC,
    errno.EPERM,
    errno.EROFS,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; the console script passes it to `sys.exit`."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        # Imported here, so that a Ctrl-C while the libraries load is as quiet as any other.
        from shoal_cli.app import app

        outcome = app(args=arguments or ["--help"], prog_name="shoal", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output has gone (`shoal plan … | head`). Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001 - the last line of defence: nothing may reach the terminal as a traceback
        return _report(error)
    return outcome if isinstance(outcome, int) else 0


def _report(error: Exception) -> int:
    """One line for the person, and the exit code."""
    from typer import Abort
    from typer.exceptions import TyperException

    from shoal.errors import ResourceError, ShoalError, UsageError
    from shoal_cli.crash import write_crash_log
    from shoal_cli.terminal import error_line

    if isinstance(error, ShoalError):
        error_line(str(error))
        return error.exit_code
    if isinstance(error, TyperException):
        error_line(f"{error.format_message()} (see `shoal --help`)")
        return UsageError.exit_code
    if isinstance(error, Abort):
        return 128 + signal.SIGINT
    if isinstance(error, OSError) and error.errno in _MACHINE_SAYS_NO:
        error_line(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
        return ResourceError.exit_code
    log = write_crash_log(error)
    where = f"the traceback is in {log}" if log else "its traceback could not be written"
    error_line(f"unexpected {type(error).__name__}: {error}; this is a defect of shoal, {where}")
    return 1


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    """Unwind as after Ctrl-C, so that nothing half-written and no process stays."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
