"""What every test stands on."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest

pytest_plugins = ["testcluster.plugin", "testcluster.operating", "testcluster.office_fixtures"]

# A shell that starts a job in the background has it ignore SIGINT, and nohup SIGHUP; programs inherit that. The tests
# press Ctrl-C on the programs they start, so those must not inherit it.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collecting makes stays to the end: thousands of tests and every module. No collector need walk it again.

    A compile collects after every block, to have one layer in memory; here that walked a million objects each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
