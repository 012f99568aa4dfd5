"""Call signatures of serving frameworks over `ksieve.topk`: change an import, keep the call.

`ksieve.adapters.vllm`, `ksieve.adapters.sglang` and `ksieve.adapters.flashinfer` hold functions with the names,
keywords, in-place outputs and results of the framework's own. None of them imports its framework. They take PyTorch
tensors, on CUDA or on the CPU. docs/guide/integrations.md says which line to change in which framework.
"""
