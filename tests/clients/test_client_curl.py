"""curl: what a person sees who tries the API by hand."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(url: str, body: dict, *options: str) -> str:
    argv = ["curl", "-sS", "--max-time", "30", *options, url, "-H", "Content-Type: application/json"]
    done = subprocess.run([*argv, "-d", json.dumps(body)], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.parametrize("stream", [False, True])
def test_chat_over_two_stages(live, stream) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": stream}
    answer = curl(f"{live}/v1/chat/completions", body, "-N")
    if stream:
        assert answer.endswith('"finish_reason":"length"}]}\n\ndata: [DONE]\n\n')
    else:
        assert json.loads(answer)["usage"]["completion_tokens"] == 5


def test_an_error_and_the_request_id(live) -> None:
    answer = curl(f"{live}/v1/completions", {"model": "fake"}, "-i", "-H", "x-request-id: by-hand")
    assert answer.startswith("HTTP/1.1 400")
    assert "x-request-id: by-hand" in answer
    assert json.loads(answer.split("\n\n")[1])["error"]["param"] == "prompt"
