"""The reference page names every parameter, on the right side."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from shoal_router.api.requests import ChatRequest, CompletionRequest

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "openai-api.md"
PARAMETERS = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields})


def is_refused(name: str) -> bool:
    """Whether a value that no field accepts in earnest is refused as unsupported."""
    model = ChatRequest if name in ChatRequest.model_fields else CompletionRequest
    try:
        model.model_validate({name: {"any": "thing"}})
    except ValidationError as error:
        return any(found["loc"] == (name,) and found["type"] == "unsupported" for found in error.errors())
    return False


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_is_on_its_side_of_the_page(name: str) -> None:
    works, refused = PAGE.read_text().split("## What is refused")
    refused = refused.split("## Errors")[0]
    expected_refused = is_refused(name) or name == "best_of"
    assert (f"`{name}`" in works, f"`{name}`" in refused) == (not expected_refused, expected_refused)
