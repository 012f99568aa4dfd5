"""Swap one call of a server's decode step for ksieve, capture it in a CUDA graph, and replay it as requests grow.

    python examples/serving_graph.py

What vLLM's sparse indexer does at every step:

    torch.ops._C.top_k_per_row_decode(
        logits, next_n, seq_lens, topk_indices, num_rows, logits.stride(0), logits.stride(1), topk_tokens)

With ksieve the name changes and nothing else. Every row of every replay is verified here. Without a CUDA GPU, or
without PyTorch, the example says so and ends.
"""

from __future__ import annotations

import sys

REQUESTS, CONTEXT, TOPK = 16, 65_536, 2048


def main() -> int:
    """Run the example; the exit status."""
    try:
        import torch
    except ImportError:
        print("skipped: PyTorch is not installed (pip install torch)")
        return 0
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no CUDA GPU here; `ksieve doctor` says what is missing")
        return 0
    import ksieve
    from ksieve.adapters import vllm

    logits = torch.empty(REQUESTS, CONTEXT, device="cuda")
    seq_lens = torch.empty(REQUESTS, dtype=torch.int32, device="cuda")
    topk_indices = torch.empty(REQUESTS, TOPK, dtype=torch.int32, device="cuda")

    def next_step(step: int) -> None:
        """Put new scores and longer requests where the graph reads them; two padded rows, as servers have them."""
        logits.normal_()
        seq_lens.copy_(torch.arange(REQUESTS) * 4096 + step)
        seq_lens[-2:] = -1

    def select() -> None:
        vllm.top_k_per_row_decode(logits, 1, seq_lens, topk_indices, REQUESTS, logits.stride(0), logits.stride(1), TOPK)

    next_step(0)
    select()  # compiles, or loads, the kernel: inside a capture it would be refused
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        select()

    for step in range(1, 4):
        next_step(step)
        topk_indices.fill_(123)
        graph.replay()
        verdict = ksieve.verify(logits, seq_lens, topk_indices)
        print(f"step {step}: {verdict}")
        if not verdict.ok:
            return 1
    print(f"{step} replays, every row exact, on {torch.cuda.get_device_name()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
