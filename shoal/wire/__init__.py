"""What crosses the hops: dataclasses (messages), their protobuf form (stage.proto, codec) and typed errors."""

import os

# Who forks here starts another program at once; gRPC would halt its threads around that, and says so when it cannot.
# Read when gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
