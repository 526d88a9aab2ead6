"""A PC as a set of namespaces: network, mounts and processes of its own, with this machine's kernel and programs.

The namespaces live by one process, their init. When that is killed, the kernel ends every process of the PC, its
mounts and its network with it: nothing can be left running, and power that fails looks just so. /var/lib and /var/log
are the PC's own disk, which outlives a loss of power; /run is gone with it.
"""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from testcluster import bridge
from testcluster.processes import Process, wait_until
from testcluster.run import RunFailed, run

DEADLINE_S: Final = 30.0
_CGROUPS: Final = Path("/sys/fs/cgroup")
# Nothing of the caller's proxies: what a PC talks to is on the bridge.
_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
_OWN: Final = {"var-lib": "/var/lib", "var-log": "/var/log"}

# bash as init: it reaps the processes whose parents are gone, as every init does.
_INIT: Final = """
set -e
for pair in {mounts}; do mount --bind "${{pair%%=*}}" "${{pair##*=}}"; done
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/netns
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
touch {ready}
sleep infinity & wait
"""


@dataclass(slots=True)
class Machine:
    """A PC: its number names its address. `disk` keeps what it writes; `logs` what its programs say."""

    number: int
    disk: Path
    logs: Path
    processes: dict[str, Process] = field(default_factory=dict)
    _power: Process | None = None
    _init: int = 0

    @property
    def name(self) -> str:
        """Its host name."""
        return f"pc-{self.number}"

    @property
    def address(self) -> str:
        """Where it is on the bridge."""
        return bridge.pc_address(self.number)

    @property
    def cgroup(self) -> str:
        """The control group of everything that its kubelet starts."""
        return f"/shoaltest-{self.name}"

    @property
    def memory_group(self) -> Path:
        """Where the kernel counts the memory of its pods."""
        return _CGROUPS / "memory" / self.cgroup.lstrip("/")

    @property
    def root(self) -> Path:
        """Its file system as this machine sees it, while it has power."""
        return Path(f"/proc/{self._init}/root")

    @property
    def is_on(self) -> bool:
        """Whether it has power."""
        return self._power is not None

    def power_on(self) -> None:
        """Start it, and plug it in."""
        for folder in _OWN:
            (self.disk / folder).mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        ready = self.disk / "ready"
        ready.unlink(missing_ok=True)
        mounts = " ".join(f"{self.disk / own}={where}" for own, where in _OWN.items())
        spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        self._power = Process.start(
            self.name,
            ["unshare", *spaces, "bash", "-c", _INIT.format(mounts=mounts, ready=ready)],
            log=self.logs / "init.log",
        )

        def is_up() -> bool:
            assert self._power is not None
            self._power.check_running()
            return ready.exists()

        wait_until(is_up, what=f"{self.name} to start", deadline_s=DEADLINE_S)
        (init,) = psutil.Process(self._power.pid).children()
        self._init = init.pid
        self._plug_in()
        self._make_cgroups()

    def power_off(self) -> None:
        """Pull the plug: its cable is dead before its programs are, so nobody is told that they end."""
        if self._power is None:
            return
        # One that did not even start has none.
        has_cable = any(each.startswith(bridge.cable(self.number)) for each in cables_left())
        if has_cable:
            self.unplug()
        for process in [*self.processes.values(), self._power]:
            process.kill()
        self.processes.clear()
        self._power = None
        if has_cable and any(each.startswith(bridge.cable(self.number)) for each in cables_left()):
            # The kernel takes a namespace's devices away when it comes to it; the next cable has the same name.
            run("ip", "link", "delete", bridge.cable(self.number))

    def unplug(self) -> None:
        """Cut its cable; its programs run on."""
        run("ip", "link", "set", bridge.cable(self.number), "down")

    def plug_in_again(self) -> None:
        """Mend its cable."""
        run("ip", "link", "set", bridge.cable(self.number), "up")

    def run(self, *command: str | Path, deadline_s: float = 120.0) -> str:
        """A command inside of it; returns what it printed."""
        return run(*self._inside(), *command, deadline_s=deadline_s)

    def start(self, program: str, command: list[str]) -> Process:
        """A program inside of it that runs on."""
        log = self.logs / f"{program}.log"
        process = Process.start(program, [*self._inside(), *command], log=log, environment=_ENVIRONMENT)
        self.processes[program] = process
        return process

    def stop(self, program: str) -> None:
        """End a program that was started, and wait for it. What it started itself runs on."""
        process = self.processes.pop(program)
        group = process.pid  # nsenter leads it; the program is its child
        os.killpg(group, signal.SIGTERM)
        wait_until(lambda: not _is_alive(group), what=f"the end of {program} on {self.name}", deadline_s=DEADLINE_S)
        process.stop()  # it has ended: only its exit code is left to be read

    def remove(self) -> None:
        """Take it away with its disk."""
        self.power_off()
        for hierarchy in _hierarchies():
            _remove_cgroup(hierarchy / self.cgroup.lstrip("/"))
        shutil.rmtree(self.disk, ignore_errors=True)

    def path(self, inside: str) -> Path:
        """Where a file of its /var/lib is for this machine."""
        return self.disk / "var-lib" / Path(inside).relative_to("/var/lib")

    def _inside(self) -> list[str]:
        assert self._init, f"{self.name} was never switched on"
        return ["nsenter", "--target", str(self._init), "--net", "--mount", "--pid", "--"]

    def _plug_in(self) -> None:
        mine, theirs = f"shoaltmp{self.number}", bridge.cable(self.number)
        run("ip", "link", "add", theirs, "type", "veth", "peer", "name", mine)
        # The same after a loss of power, as every card's: others go on sending to the address that they know.
        run("ip", "link", "set", mine, "address", f"02:00:0a:fa:00:{10 + self.number:02x}")
        run("ip", "link", "set", mine, "netns", str(self._init), "name", "eth0")
        run("ip", "link", "set", theirs, "master", bridge.NAME, "up")
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", bridge.ADDRESS)
        bridge.give_routes(self.number)

    def _make_cgroups(self) -> None:
        for controller in _controllers():
            group = controller / self.cgroup.lstrip("/")
            group.mkdir(exist_ok=True)
            # A new group of this controller has neither processors nor memory, and takes no process.
            for given in ("cpuset.cpus", "cpuset.mems"):
                if (group / given).exists():
                    (group / given).write_text((controller / given).read_text())


def _is_alive(group: int) -> bool:
    return any(
        process.info["status"] != psutil.STATUS_ZOMBIE and _group_of(process.pid) == group
        for process in psutil.process_iter(["status"])
    )


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def know_each_other(machines: list[Machine]) -> None:
    """A route to the pods of every other PC, on every PC that has power."""
    for here in machines:
        for there in machines:
            if here is not there and here.is_on:
                here.run("ip", "route", "replace", bridge.pods_of(there.number), "via", there.address)


def _hierarchies() -> list[Path]:
    """Of a machine with cgroup v1: one for each controller, and `unified`, which runc makes groups in as well."""
    return [each for each in sorted(_CGROUPS.iterdir()) if each.is_dir()]


def _controllers() -> list[Path]:
    """The hierarchies of version 1, which count and limit."""
    return [each for each in _hierarchies() if each.name != "unified"]


def _remove_cgroup(group: Path) -> None:
    if not group.exists():
        return
    groups = [*sorted((each for each in group.rglob("*") if each.is_dir()), reverse=True), group]

    def gone() -> bool:
        for each in groups:
            try:
                each.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False  # A process that was killed is still on its way out.
        return not group.exists()

    wait_until(gone, what=f"the end of {group}", deadline_s=DEADLINE_S)


def remove_cgroups() -> None:
    """Take away the control groups of PCs that are gone."""
    for group in cgroups_left():
        _remove_cgroup(Path(group))


def cgroups_left() -> list[str]:
    """Control groups of PCs that are still there."""
    return [str(each) for hierarchy in _hierarchies() for each in hierarchy.glob("shoaltest-*")]


def cables_left() -> list[str]:
    """Network devices of offices that are still there."""
    try:
        shown = run("ip", "-brief", "link")
    except RunFailed:
        return []
    return [line.split()[0] for line in shown.splitlines() if line.startswith("shoalt")]
