"""A PC as its kernel shows it, in a folder; and logind on a socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from jeepney import MessageType, new_error, new_method_return
from jeepney.low_level import Parser

from shoal_stage.agent.readings import Places

HZ = os.sysconf("SC_CLK_TCK")


class FakePc:
    """Files below `root`, as far as the agent reads them."""

    def __init__(self, root: Path, cpus: int = 8) -> None:
        self.places = Places(root / "proc", root / "sys", root / "run")
        self.cpus = cpus
        self.busy = 100.0
        self.pods = 40.0
        self.write(self.places.proc / "sys/kernel/random/boot_id", "boot-1")
        self.compute(others=0.0, pods=0.0)
        self.throttle(0)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def compute(self, *, others: float, pods: float) -> None:
        """CPU seconds more, of programs outside of pods and of pods."""
        self.busy += others + pods
        self.pods += pods
        ticks = round(self.busy * HZ)
        user, nice, system, softirq = ticks - 30, 10, 10, 10
        line = f"{user} {nice} {system} 123456 789 0 {softirq} 0 0 0"
        cores = "\n".join(f"cpu{core} 1 1 1 1 1 1 1 0 0 0" for core in range(self.cpus))
        self.write(self.places.proc / "stat", f"cpu  {line}\n{cores}\nintr 1 2 3\nctxt 9")
        text = f"usage_usec {round(self.pods * 1e6)}\nuser_usec 1\nsystem_usec 1"
        self.write(self.places.sys / "fs/cgroup/kubepods.slice/cpu.stat", text)

    def throttle(self, milliseconds: int) -> None:
        folder = self.places.sys / "devices/system/cpu"
        self.write(folder / "cpu0/thermal_throttle/core_throttle_total_time_ms", "0")
        self.write(folder / "cpu1/thermal_throttle/core_throttle_total_time_ms", str(milliseconds // 2))
        self.write(folder / "cpu0/thermal_throttle/package_throttle_total_time_ms", str(milliseconds))

    def supply(self, name: str, **files: str) -> None:
        for file, text in files.items():
            self.write(self.places.sys / "class/power_supply" / name / file, text)

    def start_again(self) -> None:
        self.write(self.places.proc / "sys/kernel/random/boot_id", "boot-2")


class FakeLogind:
    """A system bus with logind on it. `idle` None: it knows no such property; `mute`: it never answers."""

    def __init__(self, run: Path) -> None:
        self.idle: bool | None = True
        self.mute = False
        self.asked: list[tuple[str, str]] = []
        path = run / "dbus/system_bus_socket"
        path.parent.mkdir(parents=True)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            with client:
                self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        said = b""
        while b"BEGIN\r\n" not in said:
            said += client.recv(4096)
            if said.endswith(b"\r\n") and b"AUTH EXTERNAL" in said and b"BEGIN" not in said:
                client.sendall(b"OK 1234deadbeef\r\n")
        parser = Parser()
        parser.add_data(said.partition(b"BEGIN\r\n")[2])
        serial = 1
        while True:
            message = parser.get_next_message()
            if message is None:
                data = client.recv(4096)
                if not data:
                    return
                parser.add_data(data)
                continue
            if message.header.message_type is not MessageType.method_call or self.mute:
                continue
            reply = new_method_return(message, "s", (":1.7",))
            if message.body:
                self.asked.append(message.body)
                known = self.idle is not None
                reply = new_method_return(message, "v", (("b", self.idle),)) if known else new_error(message, "no.such")
            client.sendall(reply.serialise(serial))
            serial += 1


@pytest.fixture
def pc(tmp_path: Path) -> FakePc:
    """Eight cores, plugged in, idle, no logind."""
    return FakePc(tmp_path / "pc")


@pytest.fixture
def logind(pc: FakePc) -> Iterator[FakeLogind]:
    """Somebody to ask; nobody is there until `idle` is False."""
    fake = FakeLogind(pc.places.run)
    yield fake
    fake.close()
