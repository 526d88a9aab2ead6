"""Stages that end while clients are answered: one that is killed for its memory, and one after the other deleted."""

from __future__ import annotations

import os
import random
import threading
import time
from functools import partial
from typing import Any

import pytest

from testcluster.api import Manifest
from testcluster.processes import wait_until
from testcluster.serving_office import Serving, three_stages
from testcluster.streaming import Stream

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800, func_only=True)]
CLIENTS = 8
MINUTES = float(os.environ.get("SHOAL_E2E_MINUTES", "2"))
EVERY_S = 20.0
RETRIES = 10
SUBJECTS = ("a lighthouse", "a river", "a bee", "a bridge", "a clock", "a violin", "a harbour", "a glacier")


def asked(subject: str, tokens: int = 48) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Write about {subject}."}]
    return {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": tokens}


def restarts(serving: Serving) -> dict[str, int]:
    """How often each container of stages and router was started anew."""
    pods = [*serving.pods("stage"), *serving.pods("router")]
    return {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}


def take_all_room(serving: Serving, pod: Manifest) -> None:
    """Fill the container up to its limit, in pieces so small that the stage is what the kernel finds to kill.

    It ends with the container: that is how its command learns that it has done what it should.
    """
    program = (
        "import os, time\n"
        "for number in range(200):\n"
        "    if os.fork() == 0:\n"
        "        held = b'x' * (16 << 20)\n"
        "        time.sleep(60)\n"
        "        os._exit(0)\n"
        "    time.sleep(0.05)\n"
    )
    name = pod["metadata"]["name"]
    said = serving.kubectl(
        "exec", "--namespace", serving.namespace, name, "--container", "stage", "--", "python", "-c", program,
        check=False,
    )  # fmt: skip
    print(f"{name} was filled: {said.strip()}")


def test_a_stage_without_memory_is_killed_alone(installed: Serving) -> None:
    installed.apply(three_stages())
    installed.wait_ready()
    expected = Stream().start(installed.client, **asked("a lighthouse", tokens=400)).join(deadline_s=180.0)
    before = restarts(installed)
    victim = installed.pods("stage")[0]
    stream = Stream().start(installed.client, **asked("a lighthouse", tokens=400))
    stream.wait_for(10, deadline_s=120.0)
    take_all_room(installed, victim)

    def said() -> str:
        condition = installed.condition("StagesReady")
        return str(condition["message"]) if condition["reason"] == "OOMKilled" else ""

    message = wait_until(said, what="a condition that says OOMKilled", deadline_s=120.0, poll_s=0.1)
    print(message)
    assert "MiB" in message
    assert stream.join(deadline_s=240.0) == expected
    installed.wait_ready()
    after = restarts(installed)
    assert {name: after[name] - before[name] for name in before} == {
        name: int(name == victim["metadata"]["name"]) for name in before
    }


def test_clients_are_answered_while_stages_are_deleted(installed: Serving) -> None:
    """An answer that has begun goes on. Who asks while no pipeline is open is told to come back (503 with Retry-After),
    and does so as openai-python does by itself."""
    client = partial(installed.client, retries=RETRIES)
    installed.apply(three_stages(standbys=1))
    installed.wait_ready()
    expected = {
        subject: Stream().start(installed.client, **asked(subject)).join(deadline_s=180.0) for subject in SUBJECTS
    }
    end = time.monotonic() + 60 * MINUTES
    answers: list[tuple[str, str]] = []
    errors: list[Exception] = []

    def ask(number: int) -> None:
        subjects = random.Random(number)
        while time.monotonic() < end:
            subject = subjects.choice(SUBJECTS)
            try:
                answers.append((subject, Stream().start(client, **asked(subject)).join(deadline_s=180.0)))
            except Exception as error:  # noqa: BLE001 - every one is counted
                errors.append(error)

    clients = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(CLIENTS)]
    for each in clients:
        each.start()
    chosen, deleted, pause = random.Random(1), 0, threading.Event()
    while time.monotonic() + EVERY_S < end:
        pause.wait(EVERY_S)
        pod = chosen.choice(installed.pods("stage"))
        installed.kubectl("delete", "pod", "--namespace", installed.namespace, pod["metadata"]["name"], "--wait=false")
        deleted += 1
    for each in clients:
        each.join(timeout=240.0)
    hung = [each.name for each in clients if each.is_alive()]
    wrong = [subject for subject, text in answers if text != expected[subject]]
    print(f"{len(answers)} answers, {deleted} pods deleted, {len(errors)} errors, {len(wrong)} wrong, {len(hung)} hung")
    print("\n".join(sorted({repr(error) for error in errors})))
    assert (hung, wrong, errors) == ([], [], [])
    assert len(answers) >= CLIENTS
    assert deleted >= 3
