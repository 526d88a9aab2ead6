"""What crosses the hops: dataclasses (messages), their protobuf form (stage.proto, codec) and typed errors."""
