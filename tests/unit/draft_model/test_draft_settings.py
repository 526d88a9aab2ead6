"""The options of `python -m shoal_stage draft`."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.plan.document import Device
from shoal_stage.draft.settings import parse_arguments
from shoal_stage.engine.settings import KvPrecision


def test_by_default_it_takes_one_thread_of_the_cpu() -> None:
    given = parse_arguments(["--model=m"])
    assert (given.model, given.listen, given.engine.device) == (Path("m"), "127.0.0.1:0", Device.CPU)
    assert (given.engine.threads, given.engine.exact, given.prefill_chunk) == (1, False, 128)


def test_every_option_arrives() -> None:
    options = "--model=m --device=GPU --listen=[::1]:9 --streams=3 --max-context=100 --kv-precision=u8 --threads=2"
    more = "--cache-dir=c --prefill-chunk=16 --step-seconds=2 --drain-seconds=3 --die-with-parent"
    given = parse_arguments([*options.split(), *more.split()])
    engine = given.engine
    assert (engine.device, engine.sequences, engine.max_context, engine.kv) == (Device.GPU, 3, 100, KvPrecision.U8)
    assert (engine.threads, engine.cache_dir, given.prefill_chunk) == (2, Path("c"), 16)
    assert (given.listen, given.step_seconds, given.drain_seconds, given.die_with_parent) == ("[::1]:9", 2, 3, True)


@pytest.mark.parametrize("wrong", [[], ["--model=m", "--exact"], ["--model=m", "--streams=0"]])
def test_a_wrong_option_is_one_line(wrong: list[str]) -> None:
    with pytest.raises(UsageError, match="see python -m shoal_stage draft --help"):
        parse_arguments(wrong)
