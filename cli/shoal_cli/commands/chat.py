"""`shoal chat`: talk to a router in the terminal.

On a terminal it prompts; otherwise every line of stdin is a message, so that it can stand in a pipe. Ctrl-C stops the
answer, not the program (in a pipe both): the connection closes, every stage frees what the answer held, and what was
said stays.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

DEFAULT_URL = "http://127.0.0.1:8000"

_HELP = "/reset forgets the conversation, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chat")(chat)


def chat(
    url: Annotated[str, typer.Option(help="The router's address.", envvar="SHOAL_URL")] = DEFAULT_URL,
    model: Annotated[str | None, typer.Option(help="Name of the model; default: the first one served.")] = None,
    system: Annotated[str | None, typer.Option(help="A system message before the conversation.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="0 always takes the likeliest token.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Key, if the router wants one.", envvar="SHOAL_API_KEY")] = None,
) -> None:
    """Talk to a served model in the terminal."""
    from shoal_cli.conversation import Conversation

    options: dict[str, Any] = {"max_completion_tokens": max_tokens, "temperature": temperature}
    conversation = Conversation(url, api_key, system, {k: v for k, v in options.items() if v is not None})
    served = conversation.connect(model)
    interactive = sys.stdin.isatty()
    if interactive:
        # Line editing and history for input(); imported for its effect.
        import readline  # noqa: F401

        typer.echo(f"{served} at {conversation.url}. {_HELP}")
    while (line := _read_line(interactive)) is not None:
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            typer.echo(f"{line.split()[0]} is not known here. {_HELP}", err=True)
        elif line:
            answer = conversation.say(line, write=_write)
            _write("\n")
            if answer.stopped and not interactive:
                raise KeyboardInterrupt


def _read_line(interactive: bool) -> str | None:
    """The next message, or None at the end of the input."""
    while True:
        try:
            if interactive:
                return input("> ").strip()
            line = sys.stdin.readline()
            return line.strip() if line else None
        except EOFError:
            _write("\n")
            return None
        except KeyboardInterrupt:
            if not interactive:
                raise
            _write(f"\n{_HELP}\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
