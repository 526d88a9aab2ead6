"""The paper's tables, one a module, in the order of the page."""

from __future__ import annotations

from bench.paper.table import Table
from bench.paper.tables.four_stages import FOUR_STAGES
from bench.paper.tables.one_node import ONE_NODE
from bench.paper.tables.return_path import RETURN_PATH
from bench.paper.tables.rewind import REWIND
from bench.paper.tables.shards import SHARDS
from bench.paper.tables.three_nodes import THREE_NODES
from bench.paper.tables.two_nodes import TWO_NODES
from bench.paper.tables.wan import WAN

TABLES: dict[str, Table] = {
    table.name: table for table in (SHARDS, REWIND, ONE_NODE, TWO_NODES, THREE_NODES, WAN, RETURN_PATH, FOUR_STAGES)
}
