"""The router's settings: what `python -m shoal_router` takes, and the limits of the API.

Limits are there so that one request cannot take the router down; each is far above what chat clients send, and a
request beyond one is refused with its name and size.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shoal.errors import UsageError
from shoal.resource import SpeculativeMode


class ApiSettings(BaseModel):
    """What the API is called and what it accepts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    served_names: tuple[str, ...] = Field(min_length=1)
    # Many proxies close a connection that was silent for a minute.
    keep_alive_seconds: float = Field(default=15.0, gt=0, le=60)
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024)
    body_seconds: float = Field(default=30.0, gt=0, description="longest silence while a request's body comes in")
    max_messages: int = Field(default=4096, ge=1)
    max_prompts: int = Field(default=64, ge=1, description="prompts of one completion request")
    max_choices: int = Field(default=16, ge=1, description="sequences of one request: prompts x n")
    # OpenAI takes 4; agents and editors send more.
    max_stops: int = Field(default=16, ge=1)
    max_stop_chars: int = Field(default=256, ge=1)
    requests_per_key: int | None = Field(default=None, ge=1, description="that run at a time; None: any number")
    requests_per_minute: int | None = Field(default=None, ge=1, description="of one key; None: any number")


class RouterSettings(BaseModel):
    """The process: where it listens, which plan and model it serves, how long it waits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Path
    model: Path
    host: str
    port: int = Field(ge=0, le=65535, description="0: any free port")
    served_names: tuple[str, ...] = Field(default=(), description="empty: the model directory's own name")
    metrics: tuple[str, int] | None = Field(default=None, description="host and port of /metrics; None: not served")
    max_queue: int = Field(default=64, ge=0)
    prefill_chunk: int = Field(default=256, ge=1)
    prefix_cache: bool = True
    speculative_mode: SpeculativeMode = SpeculativeMode.AUTO
    speculative_max_tokens: int = Field(default=8, ge=1, le=32)
    draft_address: str | None = Field(default=None, description="of the draft process, which has a model of its own")
    recovery_attempts: int = Field(default=3, ge=0)
    recovery_seconds: float = Field(default=120.0, gt=0)
    keep_alive_seconds: float = Field(default=15.0, gt=0, le=60)
    grace_seconds: float = Field(default=25.0, ge=0, description="SIGTERM: how long running answers may take to end")
    die_with_parent: bool = False
    measure: bool = Field(default=False, description="measure once, when nobody asks, and tell it beside the metrics")
    api_keys: Path | None = Field(default=None, description="one key a line; None: everybody may call")
    requests_per_key: int | None = Field(default=None, ge=1)
    requests_per_minute: int | None = Field(default=None, ge=1)
    tls_dir: Path | None = Field(default=None, description="ca.crt, tls.crt, tls.key; None: plain hops")
    api_tls_dir: Path | None = Field(default=None, description="tls.crt, tls.key of the API; None: plain HTTP")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see python -m shoal_router --help)")


def parse_arguments(argv: Sequence[str]) -> RouterSettings:
    """The settings on a command line. Raises UsageError with the option's name."""
    defaults = {name: field.default for name, field in RouterSettings.model_fields.items()}
    parser = _Parser(
        prog="python -m shoal_router", description="Serve the OpenAI API over the stages of a plan.", allow_abbrev=False
    )
    parser.add_argument("--plan", required=True, type=Path, help="plan.json")
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="model directory")
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="default %(default)s")
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="serve /metrics there (default: nowhere)")
    parser.add_argument("--served-name", action="append", default=[], metavar="NAME", help="may be repeated")
    for name, what in (
        ("max_queue", "requests that may wait at each pipeline; more get 429"),
        ("prefill_chunk", "tokens of a prompt in one step"),
        ("speculative_max_tokens", "most tokens drafted at a time"),
        ("recovery_attempts", "lost pipelines that an answer survives"),
        ("recovery_seconds", "longest pause of an answer until the next pipeline is open"),
        ("keep_alive_seconds", "longest silence in a stream"),
        ("grace_seconds", "how long running answers may take to end after SIGTERM"),
    ):
        kind = type(defaults[name])
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(
            option, type=kind, default=defaults[name], metavar="N", help=f"{what} (default %(default)s)"
        )
    parser.add_argument(
        "--prefix-cache",
        action=argparse.BooleanOptionalAction,
        default=defaults["prefix_cache"],
        help="keep the KV pages of finished prompts for prompts that begin alike (default: yes)",
    )
    parser.add_argument(
        "--speculative-mode",
        choices=[str(each) for each in SpeculativeMode],
        default=str(defaults["speculative_mode"]),
        help="Auto: draft as much as pays; Fixed: always; Off: never (default %(default)s)",
    )
    parser.add_argument("--draft-address", metavar="HOST:PORT", help="draft process (default: drafts from text only)")
    parser.add_argument(
        "--api-keys", type=Path, metavar="FILE", help="API keys, one a line, or sha256:HEX of one; callers need one"
    )
    parser.add_argument("--requests-per-key", type=int, metavar="N", help="that run at a time; more get 429")
    parser.add_argument("--requests-per-minute", type=int, metavar="N", help="of one key; more get 429")
    parser.add_argument("--api-tls-dir", type=Path, metavar="DIR", help="tls.crt, tls.key: serve the API over HTTPS")
    parser.add_argument(
        "--tls-dir", type=Path, metavar="DIR", help="ca.crt, tls.crt, tls.key: mutual TLS with the stages"
    )
    parser.add_argument("--measure", action="store_true", help="measure once when nobody asks; at METRICS/measured")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the process that started this ends")
    options = vars(parser.parse_args(argv))
    host, port = split_address(options.pop("listen"))
    metrics = options.pop("metrics_listen")
    if metrics is not None:
        options["metrics"] = split_address(metrics, "--metrics-listen")
    if options["draft_address"] is not None:
        split_address(options["draft_address"], "--draft-address")
    try:
        return RouterSettings(host=host, port=port, served_names=tuple(options.pop("served_name")), **options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise UsageError(f"argument {option}: {first['msg']}") from None


def split_address(address: str, option: str = "--listen") -> tuple[str, int]:
    """`host:port` or `[v6]:port`. Raises UsageError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"argument {option}: {address!r} is not HOST:PORT, such as 127.0.0.1:8000")
    return host.removeprefix("[").removesuffix("]"), int(port)
