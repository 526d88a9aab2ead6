"""What a router drafts from: a defect of it may cost speed and no answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shoal_router.draft.choice import drafter_for
from shoal_router.draft.suffix import SuffixDrafter


@pytest.mark.parametrize("model", [None, SimpleNamespace(begin=lambda *_: None)], ids=["text alone", "with a model"])
def test_a_defect_of_a_source_is_the_end_of_drafts_and_no_more(monkeypatch, caplog, model):
    def broken(*_):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(SuffixDrafter, "begin", broken)
    drafter = drafter_for(model)
    drafter.begin(1, [5, 6, 5], "")
    assert drafter.propose(1, [], 4) is None
    assert caplog.text.count("drafting met a defect") == 1
