"""The data path below the stream: format, writer, reader, order (no jax here)."""
