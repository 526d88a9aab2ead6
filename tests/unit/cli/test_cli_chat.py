"""`shoal chat` against a router of the test's own making."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import pytest

from shoal.errors import StageError, UsageError
from shoal_cli.commands import chat
from shoal_cli.conversation import Conversation
from shoal_cli.main import main


class Router:
    """Answers each chat request with the next of its answers, and remembers what was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "smollm2"}, {"id": "other"}]})
        self.bodies.append(json.loads(request.content))
        answer = self.answers.pop(0)
        if answer == "INTERRUPT":
            raise KeyboardInterrupt
        if answer == "FAIL":
            return httpx.Response(503, json={"error": {"message": "loading"}})
        events = [{"choices": [{"delta": {"content": word}}]} for word in answer.split(" ")]
        return httpx.Response(200, text="".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n")


def conversation(router: Router, system: str | None = None) -> Conversation:
    made = Conversation("http://r", None, system, {"temperature": 0}, httpx.MockTransport(router))
    made.connect(None)
    return made


def test_the_conversation_is_sent_whole_each_time() -> None:
    router = Router("one", "two")
    talk = conversation(router, system="be brief")
    written: list[str] = []
    talk.say("first", written.append)
    talk.say("second", written.append)
    assert written == ["one", "two"]
    assert router.bodies[1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "second"},
    ]
    assert router.bodies[1]["model"] == "smollm2"
    assert router.bodies[1]["temperature"] == 0


def test_reset_keeps_the_system_message_only() -> None:
    talk = conversation(Router("one"), system="be brief")
    talk.say("first", lambda text: None)
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "be brief"}]


def test_ctrl_c_stops_the_answer_and_not_the_conversation() -> None:
    talk = conversation(Router("INTERRUPT", "two"))
    written: list[str] = []
    talk.say("first", written.append)
    talk.say("second", written.append)
    assert written == [" [stopped]", "two"]


def test_a_message_whose_answer_failed_is_taken_back() -> None:
    talk = conversation(Router("FAIL"))
    with pytest.raises(StageError, match="loading"):
        talk.say("first", lambda text: None)
    assert talk.messages == []


def test_a_model_that_is_not_served_is_refused_with_what_is() -> None:
    talk = Conversation("http://r", None, None, {}, httpx.MockTransport(Router()))
    with pytest.raises(UsageError, match="does not serve 'gpt': it serves smollm2, other"):
        talk.connect("gpt")


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch):
    """Run `shoal chat` with a router and a text on stdin; returns the exit code."""

    def run(router: Router, stdin: str) -> int:
        client = httpx.AsyncClient
        monkeypatch.setattr(
            httpx, "AsyncClient", lambda **options: client(**{**options, "transport": httpx.MockTransport(router)})
        )
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        return main(["chat"])

    return run


def test_every_line_of_a_pipe_is_a_message(through, capsys: pytest.CaptureFixture[str]) -> None:
    router = Router("one", "two three")
    assert through(router, "first\n\nsecond") == 0
    assert capsys.readouterr().out == "one\ntwothree\n"
    assert len(router.bodies) == 2


def test_commands_are_not_sent(through, capsys: pytest.CaptureFixture[str]) -> None:
    router = Router("one", "two")
    assert through(router, "first\n/reset\n/frobnicate\nsecond\n/exit\nthird\n") == 0
    out, err = capsys.readouterr()
    assert out == "one\ntwo\n"
    assert "/frobnicate is not known here" in err
    assert router.bodies[1]["messages"] == [{"role": "user", "content": "second"}]


def test_a_failing_answer_ends_a_pipe_with_its_exit_code(through, capsys: pytest.CaptureFixture[str]) -> None:
    assert through(Router("FAIL"), "first\n") == 6
    assert capsys.readouterr().err == "shoal: error: the router answered 503: loading\n"


def test_ctrl_d_at_the_prompt_leaves_and_ctrl_c_does_not(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    typed = iter([KeyboardInterrupt(), EOFError()])

    def type_next(prompt: str) -> str:
        raise next(typed)

    monkeypatch.setattr("builtins.input", type_next)
    assert chat._read_line(interactive=True) is None
    assert "/exit (or Ctrl-D) leaves" in capsys.readouterr().out
