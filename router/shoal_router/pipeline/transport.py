"""gRPC options of the router's channels: message sizes, and how soon a stage that vanished is noticed.

A power cut sends no RST: without keepalive a call waits for minutes (grpc#32095). The stages' servers allow pings at
this rate.
"""

from __future__ import annotations

KEEPALIVE_SECONDS = 5.0
KEEPALIVE_TIMEOUT_SECONDS = 4.0
_FRAME_OVERHEAD_BYTES = 1 << 20  # rows, block tables and parameters beside the hidden states


def channel_options(max_frame_bytes: int) -> list[tuple[str, int]]:
    """Each channel has its own connection: a fresh epoch, a fresh socket, never one that is half dead already."""
    limit = max_frame_bytes + _FRAME_OVERHEAD_BYTES
    return [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_SECONDS * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
