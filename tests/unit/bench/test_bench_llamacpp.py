"""What of the llama.cpp peer is decided here: which instruction sets it is built with, and what its output says."""

from __future__ import annotations

from bench.peers.llamacpp.build import cpu_flags, instruction_sets
from bench.peers.llamacpp.rpc import last_object

AVX2 = (
    "processor\t: 0\nflags\t\t: fpu sse4_2 avx f16c fma bmi2 avx2 avx512f\n\nprocessor\t: 1\nflags\t\t: fpu amx_int8\n"
)


def test_instruction_sets_are_those_of_the_first_processor_and_whole():
    assert instruction_sets(cpu_flags(AVX2)) == (
        "GGML_SSE42",
        "GGML_AVX",
        "GGML_AVX2",
        "GGML_FMA",
        "GGML_F16C",
        "GGML_BMI2",
    )


def test_without_flags_nothing_is_switched_on():
    assert instruction_sets(cpu_flags("")) == ()
    assert instruction_sets(cpu_flags("processor\t: 0\nBogoMIPS\t: 48.00\n")) == ()


def test_the_figures_are_the_last_object_of_the_output():
    output = 'loading\n{"t": 1.0}\nnoise\n{"t": 2.5, "speed_tg": 40.0}\n\nllama_perf: 1\n'
    assert last_object(output) == {"t": 2.5, "speed_tg": 40.0}
    assert last_object("nothing\n") is None
