"""What every test stands on."""

from __future__ import annotations

import signal

pytest_plugins = ["testcluster.plugin", "testcluster.operating", "testcluster.office_fixtures"]

# A shell that starts a job in the background has it ignore SIGINT, and nohup SIGHUP; programs inherit that. The tests
# press Ctrl-C on the programs they start, so those must not inherit it.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)
