"""PyTorch and JAX: selection as their operators, with their gradients."""
