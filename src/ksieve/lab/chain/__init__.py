"""Score production followed by selection: what a sparse-attention indexer runs per layer and step, on one GPU.

`ksieve.lab.chain.producers` names the score producers and makes inputs for them; `ksieve.lab.chain.mqa_logits` is
ours, in Triton. Importing this package imports neither Triton nor PyTorch.
"""
