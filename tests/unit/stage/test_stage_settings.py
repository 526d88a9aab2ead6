"""The options of `python -m shoal_stage serve`, and each wrong one as one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.plan.devices import PROFILES
from shoal.plan.document import Device
from shoal.wire.tls import TlsDirectory
from shoal_stage.engine.settings import EngineKind, EngineSettings, KvPrecision
from shoal_stage.server.settings import parse_arguments

LEAST = ["--model=m", "--blocks=0:17"]


def test_defaults_are_a_paged_engine_on_the_cpu_at_any_port() -> None:
    given = parse_arguments(LEAST)
    assert (given.model, given.start, given.end, given.listen) == (Path("m"), 0, 17, "127.0.0.1:0")
    assert (given.kind, given.engine.device, given.engine.exact) == (EngineKind.PAGED, Device.CPU, False)
    assert (given.engine.kv, given.engine.blocks()) == (KvPrecision.F16, 8 * 2048 // 32)
    assert not given.die_with_parent


def test_every_option_reaches_the_engine() -> None:
    given = parse_arguments(
        [
            *LEAST,
            "--device=GPU",
            "--listen=[::1]:50051",
            "--engine=stateful",
            "--streams=3",
            "--max-context=100",
            "--kv-precision=f16",
            "--kv-blocks=9",
            "--cache-dir=c",
            "--threads=2",
            "--max-frame-mib=1",
            "--die-with-parent",
            "--tls-dir=t",
            "--health-listen=0.0.0.0:50052",
        ]
    )
    assert given.kind is EngineKind.STATEFUL
    assert given.engine == EngineSettings(
        device=Device.GPU,
        kv_precision=KvPrecision.F16,
        sequences=3,
        max_context=100,
        kv_blocks=9,
        threads=2,
        cache_dir=Path("c"),
    )
    assert (given.max_frame_bytes, given.die_with_parent) == (1 << 20, True)
    assert (given.tls, given.health_listen) == (TlsDirectory(Path("t")), "0.0.0.0:50052")


def test_a_sequence_whose_context_ends_inside_a_block_has_the_whole_block() -> None:
    assert EngineSettings(sequences=3, max_context=33).blocks() == 6
    assert EngineSettings(sequences=3, max_context=33).blocks(16) == 9


@pytest.mark.parametrize("device", list(Device))
def test_keys_and_values_are_stored_as_the_planner_assumes(device: Device) -> None:
    assert EngineSettings(device=device).kv.upper() == PROFILES[device].kv
    assert EngineSettings(device=device, kv_precision=KvPrecision.F32).kv is KvPrecision.F32


def test_exact_mode_keeps_the_kv_cache_in_f32() -> None:
    assert parse_arguments([*LEAST, "--exact"]).engine.kv is KvPrecision.F32
    with pytest.raises(UsageError, match="leave out --kv-precision u8"):
        parse_arguments([*LEAST, "--exact", "--kv-precision=u8"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--blocks=0:2"], "--model"),
        (["--model=m"], "--blocks"),
        (["--model=m", "--blocks=5:2"], "not a range"),
        (["--model=m", "--blocks=2:2"], "not a range"),
        (["--model=m", "--blocks=-1:2"], "not a range"),
        ([*LEAST, "--streams=0"], "--streams: 0 is not a count"),
        ([*LEAST, "--threads=-1"], "--threads"),
        ([*LEAST, "--step-seconds=nan"], "--step-seconds: nan is not a time"),
        ([*LEAST, "--device=AUTO"], "--device"),
        ([*LEAST, "--kv-precision=u4"], "--kv-precision"),
        ([*LEAST, "--surprise"], "--surprise"),
        ([*LEAST, "--eng=paged"], "--eng"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(options: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_arguments(options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
