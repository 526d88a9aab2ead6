"""The stage image: compiles checkpoints to blocks, and serves blocks.

OpenVINO's Python package reports its import to an analytics service, from a forked process. Offices run this without
a way out and gRPC must not be forked, so the reporting module is made absent before anything imports OpenVINO.
"""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # None: importing it fails, as if missing
