"""Schemathesis reads the OpenAPI document and calls every endpoint with what it allows, and with what it does not."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from shoal_router.api.app import create_app
from shoal_router.api.fake import FakeGenerator
from shoal_router.constrain.check import FakeCheck
from shoal_router.settings import ApiSettings
from shoal_router.text.fake import CHATML_TOOLS, EOS_ID, fake_text_model

TEXT = fake_text_model(template=CHATML_TOOLS)
ANSWER = (*TEXT.encode("yes", add_special_tokens=False), EOS_ID)
APP = create_app(
    FakeGenerator(script=lambda _: ANSWER), TEXT, ApiSettings(served_names=("fake",)), grammars=FakeCheck()
)
DOCUMENT = schemathesis.openapi.from_asgi("/openapi.json", APP)
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own, about the document's and the examples' variety


@DOCUMENT.parametrize()
@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_every_endpoint_keeps_what_the_document_says(case) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "fake"  # any other gets 404, whatever else is in the body
    case.call_and_validate(checks=CHECKS)
