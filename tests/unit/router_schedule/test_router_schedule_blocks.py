"""The KV blocks' books: references, the prefix cache, eviction; against a naive list of tables."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal_router.schedule.blocks import BlockManager, extend_keys


def keys_of(tokens, block_size=2):
    keys: list[bytes] = []
    extend_keys(keys, tokens, block_size)
    return keys


def filled(manager, tokens):
    """A table with these tokens computed and offered."""
    table: list[int] = []
    keys = keys_of(tokens, manager.block_size)
    manager.adopt(table, manager.lookup(keys))
    assert manager.grow(table, len(tokens))
    manager.publish(table, keys, 0, len(keys))
    return table


def test_keys_cover_everything_before_their_block():
    assert keys_of([1, 2, 3, 4])[0] == keys_of([1, 2, 9, 9])[0]
    assert keys_of([1, 2, 3, 4])[1] != keys_of([0, 2, 3, 4])[1]
    assert len(keys_of([1, 2, 3])) == 1
    keys = keys_of([1, 2])
    extend_keys(keys, [1, 2, 3, 4], 2)
    assert keys == keys_of([1, 2, 3, 4])


def test_a_common_beginning_is_found_and_shared():
    manager = BlockManager(8, 2, caches=True)
    first = filled(manager, [1, 2, 3, 4, 5])
    second = filled(manager, [1, 2, 3, 9, 9])
    assert first[0] == second[0]
    assert not set(first[1:]) & set(second[1:])
    assert manager.available == 8 - 5
    manager.check_integrity([first, second])


def test_released_blocks_stay_usable_until_their_memory_is_needed():
    manager = BlockManager(4, 2, caches=True)
    table = filled(manager, [1, 2, 3, 4])
    manager.release(table)
    assert manager.available == 4
    assert len(manager.lookup(keys_of([1, 2, 3, 4]))) == 2
    other = filled(manager, [7, 7, 7, 7, 7, 7])  # takes the two free ones and one of the cached
    assert len(manager.lookup(keys_of([1, 2, 3, 4]))) == 1, "the tail goes before the head"
    manager.check_integrity([other])


def test_the_block_unused_for_longest_is_evicted_first():
    manager = BlockManager(3, 2, caches=True)
    for tokens in ([1, 1], [2, 2], [3, 3]):
        manager.release(filled(manager, tokens))
    manager.release(filled(manager, [1, 1]))  # used again
    table: list[int] = []
    assert manager.grow(table, 2)
    known = [bool(manager.lookup(keys_of([token, token]))) for token in (1, 2, 3)]
    assert known == [True, False, True]


def test_growing_is_all_or_nothing():
    manager = BlockManager(2, 2, caches=True)
    table: list[int] = []
    assert not manager.grow(table, 5)
    assert table == []
    assert manager.grow(table, 4)
    assert manager.available == 0


def test_without_a_prefix_cache_nothing_is_found_again():
    manager = BlockManager(4, 2, caches=False)
    manager.release(filled(manager, [1, 2]))
    assert manager.lookup(keys_of([1, 2])) == []


def test_cost_counts_cached_blocks_that_adoption_takes():
    manager = BlockManager(4, 2, caches=True)
    keys = keys_of([1, 2, 3, 4])
    table = filled(manager, [1, 2, 3, 4])
    assert manager.cost(manager.lookup(keys), 3) == 1  # both blocks are held already
    manager.release(table)
    assert manager.cost(manager.lookup(keys), 3) == 3
    before = manager.available
    other: list[int] = []
    manager.adopt(other, manager.lookup(keys))
    assert manager.grow(other, 6)
    assert before - manager.available == 3


def test_check_integrity_sees_a_lost_a_doubled_and_a_dangling_block():
    manager = BlockManager(4, 2, caches=True)
    table = filled(manager, [1, 2, 3])
    manager.check_integrity([table])
    for wrong in ([], [table, table], [[*table, 3]]):
        with pytest.raises(AssertionError):
            manager.check_integrity(wrong)


@settings(max_examples=150, deadline=None)
@given(
    blocks=st.integers(1, 8),
    block_size=st.integers(1, 3),
    actions=st.lists(
        st.tuples(st.booleans(), st.integers(0, 9), st.lists(st.integers(0, 1), min_size=1, max_size=12)), max_size=40
    ),
)
def test_nothing_is_lost_whatever_comes_and_goes(blocks, block_size, actions):
    manager = BlockManager(blocks, block_size, caches=True)
    tables: list[tuple[list[int], list[int]]] = []
    contents: dict[int, tuple[int, ...]] = {}
    for come, which, tokens in actions:
        if come or not tables:
            table: list[int] = []
            keys = keys_of(tokens, block_size)
            adopted = manager.lookup(keys)
            for index, block in enumerate(adopted):
                assert contents[block] == tuple(tokens[: (index + 1) * block_size]), "reused for another beginning"
            total = manager.blocks_for(len(tokens))
            fits = manager.cost(adopted, total) <= manager.available
            manager.adopt(table, adopted)
            assert manager.grow(table, len(tokens)) == fits
            if fits:
                for index in range(len(keys)):
                    contents[table[index]] = tuple(tokens[: (index + 1) * block_size])
                manager.publish(table, keys, len(adopted), len(keys))
                tables.append((table, tokens))
            else:
                manager.release(table)
        else:
            table, _ = tables.pop(which % len(tables))
            manager.release(table)
        manager.check_integrity([table for table, _ in tables])
