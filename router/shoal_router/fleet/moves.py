"""Sequences on their way to another pipeline: where to, and the step from one loop to the other.

Both loops see it between two steps, so a sequence is never at two or at none. Its new pipeline computes it from its
ids, those of the answer as an answer: the same seed and positions give the ids that the old one would have given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal_router.fleet.choice import Offer, ranking
from shoal_router.mailbox import Mailbox
from shoal_router.step_loop import StepLoop


def offers_of(loops: Mapping[int, StepLoop], tokens: Sequence[int]) -> dict[int, Offer]:
    """What each open pipeline offers a sequence of these ids."""
    there = {number: loop.scheduler for number, loop in loops.items() if loop.is_open}
    found = {}
    for number, scheduler in there.items():
        assert scheduler is not None, "an open pipeline has a scheduler"
        load = scheduler.load
        found[number] = Offer(
            max_context=scheduler.max_context,
            slots=load.slots,
            sequences=load.running + load.waiting,
            backlog=scheduler.backlog,
            # Where there is no choice, nobody need hash the prompt.
            cached=scheduler.cached(tokens) if len(there) > 1 else 0,
        )
    return found


def move_all(home: StepLoop, loops: Mapping[int, StepLoop]) -> int:
    """Let every sequence of `home` go on at the best of the other open loops, the oldest first; how many did.

    One that no other can hold to its end stays.
    """
    return sum(_move(mailbox, home, loops) for mailbox in sorted(home.mailboxes, key=lambda each: each.seq))


def spread(loops: Mapping[int, StepLoop]) -> int:
    """Whoever waits for memory at one pipeline while another has some free goes there; how many did."""
    moved = 0
    for home in loops.values():
        mailboxes = {mailbox.seq: mailbox for mailbox in home.mailboxes}
        for seq in home.crowded_out:
            assert home.scheduler is not None, "whoever waits does so in a scheduler"
            length = len(home.scheduler.text_of(seq))
            free = {number: loop for number, loop in loops.items() if loop.can_seat(length)}
            if free:
                moved += _move(mailboxes[seq], home, free)
    return moved


def _move(mailbox: Mailbox, home: StepLoop, loops: Mapping[int, StepLoop]) -> bool:
    assert home.scheduler is not None, "whoever has a sequence has a scheduler"
    tokens, limit = home.scheduler.text_of(mailbox.seq), home.scheduler.limit_of(mailbox.seq)
    others = {number: loop for number, loop in loops.items() if loop is not home}
    best = ranking(offers_of(others, tokens), tokens=len(tokens), limit=limit)
    if best:
        others[best[0]].take_over(mailbox, home.hand_over(mailbox))
    return bool(best)
