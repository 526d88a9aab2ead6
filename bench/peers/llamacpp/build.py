"""llama.cpp's programs, built once from the sources inside the llama-cpp-python sdist on PyPI, pinned by hash.

    cache/llamacpp-0.3.36-<instruction sets>/{llama-batched-bench, ggml-rpc-server}

Instruction sets are switched on one by one from what the processor says it has, and not by -march=native: a native
build ends at its first decode on processors with AMX.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.peers.missing import PeerMissing

VERSION = "0.3.36"
_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_BENCH, _SERVER = "llama-batched-bench", "ggml-rpc-server"
_FETCH_SECONDS, _BUILD_SECONDS = 900, 3600

# CMake option -> the flags of /proc/cpuinfo that it needs.
_OPTIONS = {
    "GGML_SSE42": ("sse4_2",),
    "GGML_AVX": ("avx",),
    "GGML_AVX2": ("avx2",),
    "GGML_FMA": ("fma",),
    "GGML_F16C": ("f16c",),
    "GGML_BMI2": ("bmi2",),
    "GGML_AVX_VNNI": ("avx_vnni",),
    "GGML_AVX512": ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
    "GGML_AVX512_VBMI": ("avx512_vbmi",),
    "GGML_AVX512_VNNI": ("avx512_vnni",),
    "GGML_AVX512_BF16": ("avx512_bf16",),
}
_FIXED = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "OFF",
    "GGML_RPC": "ON",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
}


@dataclass(frozen=True, slots=True)
class Programs:
    """What was built, and the instruction sets that it uses."""

    batched_bench: Path
    rpc_server: Path
    instruction_sets: tuple[str, ...]


def instruction_sets(cpu_flags: frozenset[str]) -> tuple[str, ...]:
    """The CMake options that a processor with these flags can run."""
    return tuple(option for option, needed in _OPTIONS.items() if cpu_flags.issuperset(needed))


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The flags of the first processor in the text of /proc/cpuinfo; none where there is no such line."""
    lines = (line for line in cpuinfo.splitlines() if line.startswith("flags"))
    return frozenset(next(lines, ":").split(":", 1)[1].split())


def build(cache: Path) -> Programs:
    """The programs, built now if they were not before: some ten minutes on two cores. Raises PeerMissing."""
    info = Path("/proc/cpuinfo")
    options = instruction_sets(cpu_flags(info.read_text() if info.exists() else ""))
    short = "-".join(option.removeprefix("GGML_").lower() for option in options) or "plain"
    final = cache / f"llamacpp-{VERSION}-{short}"
    programs = Programs(final / _BENCH, final / _SERVER, options)
    with (cache / f"{final.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.exists():
            _build(final, options)
    return programs


def _build(final: Path, options: tuple[str, ...]) -> None:
    compiler = {name: shutil.which(name) for name in ("cmake", "ninja", "c++")}
    if absent := [name for name, path in compiler.items() if path is None]:
        raise PeerMissing(f"llama.cpp cannot be built: there is no {', '.join(absent)} on the PATH")
    print(f"building llama.cpp from llama-cpp-python {VERSION}, once: minutes", file=sys.stderr)
    # What an interrupted build left is taken up again: ninja compiles what is missing.
    work = final.with_name(final.name + ".building")
    source = work / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"
    if not source.exists():
        work.mkdir(exist_ok=True)
        _fetch(work)
    defined = _FIXED | {option: "ON" if option in options else "OFF" for option in _OPTIONS}
    flags = [f"-D{name}={value}" for name, value in defined.items()]
    build = work / "build"
    _run(["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *flags], _FETCH_SECONDS)
    _run(["cmake", "--build", str(build), "--target", _BENCH, _SERVER], _BUILD_SECONDS)
    done = work / "done"
    done.mkdir(exist_ok=True)
    for program in (_BENCH, _SERVER):
        shutil.copy2(build / "bin" / program, done)
    done.rename(final)
    shutil.rmtree(work)


def _fetch(into: Path) -> None:
    """Fetch the sdist by pip, which checks the hash, and unpack it."""
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        pin = Path(scratch) / "pin.txt"
        pin.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{_SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--no-input"]
        command += ["--disable-pip-version-check", "--require-hashes", "--dest", scratch, "--requirement", str(pin)]
        _run(command, _FETCH_SECONDS)
        (sdist,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        unpacked = f"llama_cpp_python-{VERSION}"
        (Path(scratch) / unpacked).rename(into / unpacked)


def _run(command: list[str], deadline_s: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"llama.cpp cannot be built: {command[0]} was not done after {deadline_s:.0f} s") from None
    if done.returncode:
        last = ((done.stderr.strip() or done.stdout.strip()).splitlines() or ["it said nothing"])[-1]
        raise PeerMissing(f"llama.cpp cannot be built: {Path(command[0]).name} failed: {last}")
