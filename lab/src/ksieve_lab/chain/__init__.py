"""Score production followed by selection, as a sparse-attention indexer runs them per layer and step, on one GPU.

`ksieve_lab.chain.producers` names the score producers and makes inputs for them; `ksieve_lab.chain.mqa_logits` is
ours, in Triton. Importing this package imports neither Triton nor PyTorch.
"""
