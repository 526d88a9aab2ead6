"""Which sequences run in which step: pure bookkeeping, without I/O and without a clock.

sequence     one generation and its one number, `num_computed`, against its target
queue        who waits, in which order, and for how long
blocks       the KV blocks: reference counts, prefix cache, eviction
memory       slots and blocks of one pipeline, handed out and taken back
batch        one step while it is put together and while it is in flight
drafting     the seam to draft sources
guarded      a drafter whose defects cost speed and nothing else
acceptance   how likely a guess is to be right, learned from outcomes
costs        what steps take, measured
policy       how many guesses pay: arithmetic
speculation  a scheduler's guesses: asked for, chosen, judged
plan         what goes out (StepPlan) and what came of it (SequenceEvent)
scheduler    admission, micro-batches, chunked prefill, preemption, cancellation
"""
