"""Clients are answered while stages end: killed in the middle of an answer, and deleted one after the other.

The short form of the end-to-end tests (`make e2e-short`): minutes instead of the better part of an hour.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from testcluster.serving_office import LIGHTHOUSE, Serving, question, three_stages

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800, func_only=True)]
CLIENTS = 8
MINUTES = float(os.environ.get("SHOAL_E2E_MINUTES", "2"))
EVERY_S = 20.0
RETRIES = 10
SUBJECTS = ("a lighthouse", "a river", "a bee", "a bridge", "a clock", "a violin", "a harbour", "a glacier")
ASKED = {subject: question(f"Write about {subject}.", 48) for subject in SUBJECTS}
STORY = question(LIGHTHOUSE, 400, to_the_length=True)


def test_an_answer_outlives_the_containers_of_a_pc(installed_for_module: Serving) -> None:
    """Nobody stands by: its kubelet starts the stage anew."""
    serving = installed_for_module
    serving.apply(three_stages())
    serving.wait_ready()
    undisturbed = serving.answer(STORY)
    stream = serving.stream(STORY)
    stream.wait_for(20, deadline_s=60.0)
    node = serving.stage_nodes()[1]
    assert serving.office.workers[node].kill_containers("stage") == 1
    assert not stream.finish, "they were killed in the middle of it"
    assert stream.join(deadline_s=180.0) == undisturbed
    assert stream.finish == "length"
    begin, end = stream.longest_pause()
    print(f"the containers of {node} were killed; pause of the answer: {end - begin:.2f} s")
    serving.wait_ready()
    assert serving.stage_nodes()[1] == node
    restarts = [pod["status"]["containerStatuses"][0]["restartCount"] for pod in serving.pods("stage")]
    assert sorted(restarts) == [0, 0, 1]


def test_clients_are_answered_while_stages_are_deleted(installed_for_module: Serving) -> None:
    """An answer that has begun goes on. Who asks while no pipeline is open is told to come back (503 with Retry-After),
    and does so as openai-python does by itself."""
    serving = installed_for_module
    serving.apply(three_stages(standbys=1))
    serving.wait_ready()
    serving.wait_for_a_standby()
    expected = {subject: serving.answer(asked) for subject, asked in ASKED.items()}
    end = time.monotonic() + 60 * MINUTES
    answers: list[tuple[str, str]] = []
    errors: list[Exception] = []

    def ask(number: int) -> None:
        subjects = random.Random(number)
        while time.monotonic() < end:
            subject = subjects.choice(SUBJECTS)
            try:
                answers.append((subject, serving.answer(ASKED[subject], retries=RETRIES)))
            except Exception as error:  # noqa: BLE001 - every one is counted
                errors.append(error)

    clients = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(CLIENTS)]
    for each in clients:
        each.start()
    chosen, deleted, pause = random.Random(1), 0, threading.Event()
    while time.monotonic() + EVERY_S < end:
        pause.wait(EVERY_S)
        pod = chosen.choice(serving.pods("stage"))
        serving.kubectl("delete", "pod", "--namespace", serving.namespace, pod["metadata"]["name"], "--wait=false")
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
