"""`python -m bench.paper [FOLDER]`: write the page and its pictures anew from what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.paper.write import DOCS, write_page
from shoal.errors import ShoalError

if __name__ == "__main__":
    try:
        write_page(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
    except ShoalError as error:
        sys.exit(f"bench.paper: error: {error}")
