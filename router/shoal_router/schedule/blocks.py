"""The KV blocks of a pipeline: who holds which, which may be reused, which goes next.

Every stage has the same number of blocks, so one table serves all of them. A full block whose tokens are committed
and computed is published under a key that chains over everything before it; a later sequence with the same beginning
adopts it (prefix cache). A published block that nobody holds stays usable until its memory is needed: the one unused
for longest is evicted first, and within one sequence the tail before the head.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b


def extend_keys(keys: list[bytes], tokens: Sequence[int], block_size: int) -> None:
    """Append the keys of the full blocks of `tokens` that `keys` does not have yet.

    A key covers its block and, through its parent's key, all blocks before it. 128 bits: no collision in practice.
    """
    keys.extend(chained_keys(tokens, block_size, len(keys), keys[-1] if keys else b""))


def chained_keys(tokens: Sequence[int], block_size: int, start: int = 0, parent: bytes = b"") -> Iterator[bytes]:
    """The keys of the full blocks of `tokens` from block `start` on, whose `parent` is the key of the block before."""
    for index in range(start, len(tokens) // block_size):
        content = array("I", tokens[index * block_size : (index + 1) * block_size])
        parent = blake2b(parent + content.tobytes(), digest_size=16).digest()
        yield parent


class BlockManager:
    """Invariant: each block is in exactly one of three places: free, cached (published, held by nobody), or held.

    `references[b]` is the number of tables that contain block b.
    """

    def __init__(self, blocks: int, block_size: int, *, caches: bool) -> None:
        self.count = blocks
        self.block_size = block_size
        self._caches = caches
        self._free: list[int] = []
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._references: list[int] = []
        self._key_of: list[bytes | None] = []
        self._by_key: dict[bytes, int] = {}
        self.clear()

    def clear(self) -> None:
        """Forget every table and the prefix cache: the memory behind them is gone."""
        self._free = list(range(self.count - 1, -1, -1))
        self._cached.clear()
        self._references = [0] * self.count
        self._key_of = [None] * self.count
        self._by_key.clear()

    @property
    def available(self) -> int:
        """Blocks that can be handed out: free ones, and cached ones by eviction."""
        return len(self._free) + len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` positions."""
        return -(-tokens // self.block_size)

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """The published blocks of the longest known beginning; nobody's reference changes."""
        found: list[int] = []
        if self._caches:
            for key in keys:
                block = self._by_key.get(key)
                if block is None:
                    break
                found.append(block)
        return found

    def cost(self, adopted: Sequence[int], total: int) -> int:
        """By how much `available` falls when a table of `total` blocks starts with the `adopted` ones."""
        return total - len(adopted) + sum(1 for block in adopted if not self._references[block])

    def adopt(self, table: list[int], blocks: Iterable[int]) -> None:
        """Put published blocks into an empty table."""
        for block in blocks:
            if not self._references[block]:
                del self._cached[block]
            self._references[block] += 1
            table.append(block)

    def grow(self, table: list[int], tokens: int) -> bool:
        """Lengthen the table to hold `tokens` positions; False, and nothing changed, when blocks run out."""
        missing = self.blocks_for(tokens) - len(table)
        if missing > self.available:
            return False
        for _ in range(missing):
            block = self._free.pop() if self._free else self._evict()
            self._references[block] = 1
            table.append(block)
        return True

    def publish(self, table: Sequence[int], keys: Sequence[bytes], start: int, end: int) -> None:
        """Offer the table's blocks [start, end), which are full and computed, under their keys."""
        if not self._caches:
            return
        for index in range(start, end):
            block, key = table[index], keys[index]
            # Two sequences may have computed the same block side by side: the first one stays the published one.
            if key not in self._by_key and self._key_of[block] is None:
                self._by_key[key] = block
                self._key_of[block] = key

    def release(self, table: list[int]) -> None:
        """Empty the table. Published blocks stay in the cache, the tail nearer to eviction than the head."""
        for block in reversed(table):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._key_of[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None
        table.clear()

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        key = self._key_of[block]
        assert key is not None, "only published blocks are cached"
        del self._by_key[key]
        self._key_of[block] = None
        return block

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare the books with the tables; raises AssertionError when a block is lost, doubled or dangling."""
        held = Counter(block for table in tables for block in table)
        for block in range(self.count):
            assert self._references[block] == held[block], f"block {block}: {held[block]} tables hold it"
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached, "a block is free and cached"
        assert free | cached == {block for block in range(self.count) if not held[block]}, "a block is lost"
        assert all(self._key_of[block] is None for block in free), "a free block is published"
        published = {key: block for block, key in enumerate(self._key_of) if key is not None}
        assert published == self._by_key, "the prefix cache names a block that is not published"
        assert cached <= set(published.values()), "an unpublished block is cached"
