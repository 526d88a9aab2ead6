"""Masking rejected drafts against trimming the state: bench.rewind, beside the paper's figures."""

from __future__ import annotations

from bench import rewind
from bench.paper.table import Entry, Table, Unit
from bench.report import Report


def _measure(table: Table, quick: bool) -> Report:
    del table
    return rewind.run(quick)


REWIND = Table(
    name="rewind",
    title="Mask rewind against physical trim",
    source="table trim_cost and the text around it",
    text=(
        "The stateful engine keeps rejected positions and masks them, or takes them out of its state by "
        "`query_state` and `set_state`. Two engines run the same steps of one token and three drafts."
    ),
    entries=(
        Entry("masking, of a step (the paper: less than)", "mask_overhead", Unit.SHARE, 0.01),
        Entry("masking, of a step, in a long answer", "mask_overhead_long", Unit.SHARE),
        Entry("a trim", "trim_ms", Unit.MS, 48.0),
        Entry("a trim, of a step of four tokens", "trim_cost", Unit.SHARE, 48 / 47),
        Entry("largest difference of a logit in f32", "difference", Unit.PLAIN, 0.0),
        Entry("ids that differ", "ids_that_differ", Unit.COUNT, 0.0),
    ),
    differs=(
        "SmolLM2-135M in INT4 on one core, whose state is plain memory, for Llama 3.1 8B on a GPU, where a trim moves "
        "it between device and host.",
        "The paper compares texts; here every logit is compared.",
    ),
    measure=_measure,
)
