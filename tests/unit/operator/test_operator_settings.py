"""Settings come from the environment, and a bad one is named."""

from __future__ import annotations

import json
import logging

import pytest

from shoal.errors import UsageError
from shoal_operator.logs import JsonFormatter
from shoal_operator.settings import OperatorSettings


def test_every_kind_of_value():
    settings = OperatorSettings.from_environment(
        {
            "SHOAL_WATCH_NAMESPACES": "a, b",
            "SHOAL_SUPPLEMENTAL_GROUPS": "109,992",
            "SHOAL_LEADER_ELECTION": "false",
            "SHOAL_RESYNC_SECONDS": "30",
            "SHOAL_NODE_CACHE": "",
            "SHOAL_STORAGE_CLASS": "",
            "SHOAL_UNKNOWN": "x",
            "PATH": "/bin",
        }
    )
    assert settings.watch_namespaces == ("a", "b")
    assert settings.supplemental_groups == (109, 992)
    assert settings.leader_election is False
    assert settings.resync_seconds == 30
    assert settings.node_cache == ""
    assert OperatorSettings.from_environment({}).node_cache == "/var/lib/shoal"


@pytest.mark.parametrize(
    ("name", "value"),
    [("SHOAL_WORKERS", "0"), ("SHOAL_LOG_FORMAT", "xml"), ("SHOAL_SUPPLEMENTAL_GROUPS", "render")],
)
def test_a_bad_value_is_named(name, value):
    with pytest.raises(UsageError, match=f"{name}='{value}' cannot be used"):
        OperatorSettings.from_environment({name: value})


def test_a_log_line_is_one_json_object():
    record = logging.makeLogRecord({"name": "x", "levelno": 20, "levelname": "INFO", "msg": "a %s", "args": ("b",)})
    record.model = "llama"
    try:
        raise ValueError("why")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["level"], line["model"]) == ("a b", "info", "llama")
    assert "ValueError: why" in line["traceback"]
