"""PyTorch: `ksieve.torch.topk`, registered operators, gradients."""
