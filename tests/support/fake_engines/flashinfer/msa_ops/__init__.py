"""Holds the function under the package's name."""

from .sparse_topk_select import msa_topk_select

__all__ = ["msa_topk_select"]
