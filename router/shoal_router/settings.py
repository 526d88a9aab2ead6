"""The router's settings: what `python -m shoal_router` takes, and the limits of the API.

Limits are there so that one request cannot take the router down; each is far above what chat clients send, and a
request beyond one is refused with its name and size.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ApiSettings(BaseModel):
    """What the API is called and what it accepts. The first served name is the one that answers carry by default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    served_names: tuple[str, ...] = Field(min_length=1)
    # OpenAI's edge and most proxies close a connection that was silent for a minute or less.
    keep_alive_seconds: float = Field(default=15.0, gt=0, le=60)
    max_body_bytes: int = Field(default=8 * 2**20, ge=1024)
    max_messages: int = Field(default=4096, ge=1)
    max_prompts: int = Field(default=64, ge=1, description="prompts of one completion request")
    max_choices: int = Field(default=16, ge=1, description="sequences of one request: prompts x n")
    # OpenAI takes 4; agents and editors send more.
    max_stops: int = Field(default=16, ge=1)
    max_stop_chars: int = Field(default=256, ge=1)
