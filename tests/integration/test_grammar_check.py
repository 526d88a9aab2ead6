"""The process that compiles grammars: answers, remembers, is killed when it hangs, and is there again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shoal.manifest import TOKENIZER_DIR
from shoal_router.constrain.check import CheckUnavailable, ProcessCheck
from shoal_router.constrain.constraint import Constraint, Form, GrammarRefused
from shoal_router.text.fake import EOS_ID, fake_tokenizer
from shoaltest.waiting import until

GOOD = Constraint(Form.REGEX, "[a-z]+", "regex")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / TOKENIZER_DIR).mkdir()
    fake_tokenizer().save(str(tmp_path / TOKENIZER_DIR / "tokenizer.json"))
    return tmp_path


async def test_what_takes_too_long_is_refused_and_nobody_else_suffers(directory: Path) -> None:
    check = ProcessCheck(directory, 259, (EOS_ID,), compile_seconds=0.01)
    try:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(turn())
        deep = Constraint(Form.GRAMMAR, "start: " + " | ".join(f'"w{i}"' for i in range(4000)), "grammar")
        with pytest.raises(GrammarRefused, match="not compiled within"):
            await check.grammar(deep)
        ticking.cancel()
        assert turns > 100, "the event loop stood still"
        again = ProcessCheck(directory, 259, (EOS_ID,))
        assert "[a-z]+" in await again.grammar(GOOD)
        await again.stop()
    finally:
        await check.stop()


async def test_answers_come_from_one_process_or_from_memory(directory: Path) -> None:
    check = ProcessCheck(directory, 259, (EOS_ID,))
    first, second, refused = await asyncio.gather(
        check.grammar(GOOD),
        check.grammar(GOOD),
        check.grammar(Constraint(Form.REGEX, "(a", "regex")),
        return_exceptions=True,
    )
    assert first == second
    assert isinstance(refused, GrammarRefused)
    await check.stop()
    assert await check.grammar(GOOD) == first, "no process is needed for it"


async def test_who_leaves_while_the_process_starts_takes_no_answer_from_the_next(directory: Path) -> None:
    check = ProcessCheck(directory, 259, (EOS_ID,))
    first = asyncio.create_task(check.grammar(GOOD))
    await until(lambda: check._process is not None)
    first.cancel()
    assert "[a-z]+" in await check.grammar(GOOD)
    await check.stop()


async def test_a_model_without_a_tokenizer_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckUnavailable):
        await ProcessCheck(tmp_path, 259, (EOS_ID,)).grammar(GOOD)
