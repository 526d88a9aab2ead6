"""The KV memory of a pipeline: slots and blocks, handed to sequences and taken back.

The stateful engine keeps a sequence in a slot; its block table is kept in the books all the same (there are always
enough blocks then) but does not travel. The paged engine keeps it in blocks; there a slot only bounds the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import islice

from shoal.wire.messages import KvCapacity
from shoal_router.schedule.blocks import BlockManager, chained_keys, extend_keys
from shoal_router.schedule.sequence import Sequence


class KvMemory:
    """Invariant: a sequence has a slot if and only if it has blocks; a slot belongs to one sequence at most."""

    def __init__(self, capacity: KvCapacity, *, prefix_cache: bool) -> None:
        self.shares = capacity.shares_blocks
        self._caches = self.shares and prefix_cache
        self.slots = capacity.sequences
        blocks = capacity.blocks
        if not self.shares:
            # Slots hold a whole context each, whatever number of blocks the engine calls that.
            blocks = max(blocks, self.slots * -(-capacity.max_context // capacity.block_size))
        self.blocks = BlockManager(blocks, capacity.block_size, caches=self._caches)
        self.max_context = min(capacity.max_context, blocks * capacity.block_size)
        self._free_slots = list(range(self.slots - 1, -1, -1))
        self._released: list[int] = []

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._free_slots)

    def cached(self, tokens: SequenceOf[int]) -> int:
        """How many of these ids a sequence that begins with them would find in the prefix cache."""
        if not self._caches:
            return 0
        size = self.blocks.block_size
        # Lazily: of a prompt that nobody had before, one block is hashed.
        return size * len(self.blocks.lookup(islice(chained_keys(tokens, size), (len(tokens) - 1) // size)))

    def has_room(self, tokens: int, headroom: int) -> bool:
        """Whether a sequence of that many ids could be seated now, even if nothing of it is cached; see `seat`."""
        left = self.blocks.available - self.blocks.blocks_for(tokens)
        return bool(self._free_slots) and left >= (headroom if self.shares else 0)

    def seat(self, seq: Sequence, headroom: int) -> bool:
        """A slot, and blocks for all ids of `seq`, as far as possible from the prefix cache.

        Leaves at least `headroom` blocks for others; a slot has its own. False, and nothing changed, when that is not
        to be had.
        """
        if not self._free_slots:
            return False
        adopted: list[int] = []
        if self._caches:
            extend_keys(seq.block_keys, seq.tokens, self.blocks.block_size)
            # The last id is always computed: its successor must be drawn.
            adopted = self.blocks.lookup(seq.block_keys[: (len(seq.tokens) - 1) // self.blocks.block_size])
        total = self.blocks.blocks_for(len(seq.tokens))
        left = self.blocks.available - self.blocks.cost(adopted, total)
        if left < (headroom if self.shares else 0):
            return False
        self.blocks.adopt(seq.blocks, adopted)
        grown = self.blocks.grow(seq.blocks, len(seq.tokens))
        assert grown, "the cost was checked"
        seq.slot = self._free_slots.pop()
        seq.published = len(adopted)
        seq.num_computed = seq.acknowledged = len(adopted) * self.blocks.block_size
        return True

    def grow(self, seq: Sequence) -> bool:
        """Blocks for all ids of `seq`; False, and nothing changed, when they run out."""
        return self.blocks.grow(seq.blocks, len(seq.tokens))

    def stretch(self, seq: Sequence, tokens: int, reserve: int) -> int:
        """Blocks for up to `tokens` positions of `seq`, as far as `reserve` blocks stay for others.

        Returns how many positions the sequence's blocks hold then, `tokens` at most.
        """
        blocks = self.blocks
        spare = max(blocks.available - (reserve if self.shares else 0), 0)
        tokens = min(tokens, (len(seq.blocks) + spare) * blocks.block_size)
        blocks.grow(seq.blocks, tokens)
        return tokens

    def acknowledge(self, seq: Sequence, end: int) -> None:
        """The stages have computed the positions before `end` from committed ids: full blocks may be reused."""
        seq.acknowledged = end
        full = end // self.blocks.block_size
        if self._caches and full > seq.published:
            extend_keys(seq.block_keys, seq.tokens, self.blocks.block_size)
            self.blocks.publish(seq.blocks, seq.block_keys, seq.published, full)
            seq.published = full

    def give_back(self, seq: Sequence) -> None:
        """Take slot and blocks, and note that the stages must hear of it."""
        self.blocks.release(seq.blocks)
        self._free_slots.append(seq.slot)
        self._released.append(seq.id)
        seq.forget_computed()

    def releases(self) -> tuple[int, ...]:
        """The sequences whose memory was taken back since the last call."""
        released = tuple(self._released)
        self._released.clear()
        return released

    def check_integrity(self, seated: Iterable[Sequence]) -> None:
        """Compare the books with the sequences that should hold memory; raises AssertionError."""
        held = list(seated)
        self.blocks.check_integrity(seq.blocks for seq in held)
        assert sorted([*self._free_slots, *(seq.slot for seq in held)]) == list(range(self.slots)), "a slot is lost"
        for seq in held:
            assert len(seq.blocks) >= self.blocks.blocks_for(seq.num_computed), f"sequence {seq.id} lacks blocks"
            assert seq.published <= seq.acknowledged // self.blocks.block_size, f"sequence {seq.id} offers too much"
