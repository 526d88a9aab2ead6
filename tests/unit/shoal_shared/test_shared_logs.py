"""What every process writes: one JSON object a line."""

import json
import logging
import sys

from shoal.logs import JsonFormatter, announce


def test_a_log_line_is_one_json_object_with_its_extras_and_traceback() -> None:
    try:
        raise ValueError("x\ny")
    except ValueError:
        info = sys.exc_info()
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, "said %s", ("ü",), info)
    record.request_id = "r1"
    line = JsonFormatter().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["time"].endswith("+00:00")
    assert (entry["level"], entry["logger"], entry["message"]) == ("warning", "a.b", "said ü")
    assert entry["request_id"] == "r1"
    assert "ValueError" in entry["traceback"]


def test_an_event_is_one_json_object_on_stdout(capsys) -> None:
    announce("ready", address="127.0.0.1:1", capacity={"sequences": 2})
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert err == ""
    assert json.loads(out) == {"event": "ready", "address": "127.0.0.1:1", "capacity": {"sequences": 2}}
