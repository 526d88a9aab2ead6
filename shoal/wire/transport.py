"""gRPC options of every hop, both sides: message sizes, and how soon a peer that vanished is noticed.

A power cut sends no RST: without keepalive a call waits for minutes (grpc#32095). Both sides ping, so that a stage
drops an upstream that is gone just as an upstream drops a stage.
"""

from __future__ import annotations

import os

import grpc

from shoal.wire.tls import TlsDirectory

# gRPC's EventEngine hands every read and write from thread to thread; the older poller answers a message on a stream a
# third sooner (0.20 instead of 0.30 ms there and back in Python, grpcio 1.85). Read when the first channel or server is
# made. A release without these switches ignores them.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

KEEPALIVE_SECONDS = 5.0
KEEPALIVE_TIMEOUT_SECONDS = 4.0
FRAME_OVERHEAD_BYTES = 1 << 20  # rows, block tables and parameters beside the hidden states

Options = list[tuple[str, int]]


def _shared(max_frame_bytes: int) -> Options:
    limit = max_frame_bytes + FRAME_OVERHEAD_BYTES
    return [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(max_frame_bytes: int) -> Options:
    """Options of a stage's server. A port that is in use is an error, not something to share."""
    return [
        *_shared(max_frame_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def open_channel(address: str, max_frame_bytes: int, tls: TlsDirectory | None = None) -> grpc.aio.Channel:
    """A channel to the stage at `address`; with `tls` the stage must have a certificate for that name.

    Raises ResourceError when the TLS directory cannot be read.
    """
    options = channel_options(max_frame_bytes)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=options)


def channel_options(max_frame_bytes: int) -> Options:
    """Options of a channel to a stage. Each channel has its own connection: a fresh epoch, a fresh socket."""
    return [
        *_shared(max_frame_bytes),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
