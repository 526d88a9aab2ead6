"""Numbers in words, the same in every reason, advice and error."""

from __future__ import annotations

from shoal.plan.devices import GIB, MIB
from shoal.plan.document import MemorySum


def size(count: int) -> str:
    """Bytes for a person: GiB, or MiB below a tenth of a GiB."""
    return f"{count / GIB:.2f} GiB" if count >= GIB // 10 else f"{count / MIB:.1f} MiB"


def memory(total: MemorySum) -> str:
    """The sum of a stage's memory, with the terms that count."""
    terms = [f"weights {size(total.weights)}"]
    if total.load_peak >= total.kv:
        terms.append(f"load peak {size(total.load_peak)}")
    else:
        terms.append(f"KV {size(total.kv)}")
    terms.append(f"runtime {size(total.runtime)}")
    return f"{size(total.total)} ({' + '.join(terms)})"


def layers(start: int, end: int) -> str:
    """Layers [start, end) with both ends included: `layers 0-15`, `layer 3`."""
    return f"layer {start}" if end - start == 1 else f"layers {start}-{end - 1}"


def count(number: int, noun: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
