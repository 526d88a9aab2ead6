"""Which sequences run in which step: pure bookkeeping, without I/O and without a clock.

sequence     one generation and its one number, `num_computed`, against its target
blocks       the KV blocks: reference counts, prefix cache, eviction
memory       slots and blocks of one pipeline, handed out and taken back
scheduler    admission, micro-batches, chunked prefill, preemption, cancellation
service_time how long sequences run, for Retry-After
plan         what goes out (StepPlan) and what came of it (SequenceEvent)
"""
