"""Asking logind whether somebody is at the PC: `IdleHint` of org.freedesktop.login1.Manager, over the system bus.

Desktops tell logind when nobody has typed or moved the mouse for a while; of terminals and ssh it finds out by itself;
and a film that plays keeps the session from becoming idle. It is False as soon as one session is in use. The files in
/run/systemd/sessions do not hold it, and are private to logind. Any user may ask, by a read-only mount as well.

jeepney speaks D-Bus; the socket is opened here, because its own connections wait for the bus without a deadline.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from jeepney import DBusAddress, Message, Properties
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.bus_messages import message_bus
from jeepney.low_level import HeaderFields, Parser
from jeepney.wrappers import DBusErrorResponse, unwrap_msg

from shoal.errors import ResourceError

SOCKET: Final = "dbus/system_bus_socket"
SECONDS: Final = 2.0
_CHUNK: Final = 4096
_MANAGER: Final = DBusAddress(
    "/org/freedesktop/login1", bus_name="org.freedesktop.login1", interface="org.freedesktop.login1.Manager"
)


async def somebody_is_there(run: Path, seconds: float = SECONDS) -> bool:
    """Whether a session is in use. `run` is the PC's /run. Raises ResourceError when logind cannot be asked."""
    socket = run / SOCKET
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                idle = await _idle(reader, writer)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError as error:
        raise ResourceError(f"logind cannot be asked by {socket}: no answer within {seconds:g} s") from error
    except (OSError, EOFError, AuthenticationError, DBusErrorResponse, ValueError) as error:
        raise ResourceError(f"logind cannot be asked by {socket}: {error}") from error
    return not idle


async def _idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    authenticator = Authenticator(enable_fds=False, inc_null_byte=True)
    for said in authenticator:
        writer.write(said)
        authenticator.feed(await _some(reader))
    writer.write(BEGIN)
    parser = Parser()
    await _call(message_bus.Hello(), 1, reader, writer, parser)
    ((kind, idle),) = await _call(Properties(_MANAGER).get("IdleHint"), 2, reader, writer, parser)
    if kind != "b":
        raise ValueError(f"IdleHint is of type {kind}")
    return bool(idle)


async def _call(
    message: Message, serial: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parser: Parser
) -> tuple[Any, ...]:
    """The body of the reply; signals of the bus that come in between are skipped."""
    writer.write(message.serialise(serial))
    while True:
        reply = parser.get_next_message()
        if reply is None:
            parser.add_data(await _some(reader))
        elif reply.header.fields.get(HeaderFields.reply_serial) == serial:
            body: tuple[Any, ...] = unwrap_msg(reply)
            return body


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_CHUNK)
    if not data:
        raise EOFError("the bus hung up")
    return data
