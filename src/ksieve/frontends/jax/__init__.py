"""JAX: `ksieve.topk` of traced arrays as an FFI call."""
