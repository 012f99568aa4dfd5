"""What ranks state to one another before they send scores, so that no difference between them is an answer.

A rank's *statement* is the text of every argument that must agree (`ARGUMENTS`), and its tag a digest of that text. The
first message of a call holds a tag; a rank that has failed sends `FAILED`. Where tags differ, all ranks know it from
that message, send their statements, and raise. Over gloo ranks may send first messages of several sizes: each receives
less than it has room for, by an all-to-all.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NoReturn

from ksieve.core.errors import ArgumentError, BackendError, kind_of, shown
from ksieve.core.installation import require_torch
from ksieve.core.problem import is_int
from ksieve.distributed.schedules import LINKS, Link

FAILED = 0
"""Tag of a rank that raises."""

_HEAD = 16
"""Bytes in front of the data of a first message: the tag, and the width of the rank's shard."""
_MOST = 1 << 20
"""Most bytes of data in a first message over gloo: every rank has room for as many of every other."""
_TEXT = 8192
"""Bytes of a statement."""


def _said(value: Any) -> str:
    """A value in words, without reading an array."""
    if is_int(value):
        return str(int(value))
    return "an array" if hasattr(value, "shape") else shown(value)


def _scores(scores: Any) -> str:
    return f"{scores.shape[0]} rows of {str(scores.dtype).removeprefix('torch.')} on {scores.device.type}"


def _link(link: Link) -> str:
    named = next((name for name, known in LINKS.items() if known == link), None)
    return named or repr(link)


_STATED = (
    "rows", "k", "dtype", "device", "layout", "output", "index_base", "tie_break", "largest", "nan", "schedule",
    "max_k", "local_lengths", "global_lengths", "starts", "ends", "next_n", "num_rows", "page_table", "page_size",
    "row_to_request",
)  # fmt: skip

ARGUMENTS: dict[str, Callable[[Any], str] | None] = {
    "plan": lambda plan: "a plan",
    "local_scores": _scores,
    **dict.fromkeys(_STATED, _said),
    "link": _link,
    "width": None,  # each rank's own: stated beside the tag
    "group": None,  # what messages go through
}
"""Every argument of `topk` and `plan`, in the order in which ranks compare them, with words for its value. None: ranks
may differ. Of an array, its numbers and its presence must agree."""


def stated(given: dict[str, Any]) -> dict[str, str]:
    """Return the statement of some arguments."""
    words = [(name, value, ARGUMENTS[name]) for name, value in given.items()]
    return {name: "None" if value is None else short(say(value)) for name, value, say in words if say}


@lru_cache(256)
def tag_of(*facts: Any) -> int:
    """Return a digest of facts: 62 bits, at least one of them set."""
    return int.from_bytes(blake2b(repr(facts).encode(), digest_size=8).digest(), "little") >> 2 | 1


def distributed() -> Any:
    """Import ``torch.distributed``, with a process group."""
    dist = require_torch("ksieve.distributed runs on PyTorch").distributed
    if not dist.is_available() or not dist.is_initialized():
        raise BackendError("there is no process group: torch.distributed.init_process_group(...) first")
    return dist


def gather(dist: Any, array: Any, world: int, group: Any) -> Any:
    """Arrays of all ranks, stacked in the order of the ranks; `array` is contiguous."""
    every = array.new_empty((world, *array.shape))
    if array.numel():  # otherwise there is nothing to send, on any rank
        # The second name is for PyTorch before 2.12.
        collective = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        collective(every.view(-1), array.view(-1), group=group)
    return every


class Channel:
    """A process group as one of its ranks uses it; an `ArgumentError` where it is none of this rank."""

    def __init__(self, group: Any) -> None:
        self.dist = dist = distributed()
        if not (group is None or group is dist.GroupMember.NON_GROUP_MEMBER or isinstance(group, dist.ProcessGroup)):
            error = ArgumentError("group", kind_of(group), "a process group of torch.distributed")
            Channel(None).fail(error)
            raise error
        self.group, self.rank, self.world = group, dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ArgumentError("group", "a process group without this rank", "a group that this process belongs to")
        self.backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))

    def waits(self, kind: str) -> bool:
        """Whether the host takes part in messages between devices of a kind, and may compare tags."""
        return self.backends.get(kind) != "nccl"

    def meet(
        self, tag: int, statement: Callable[[], dict[str, str]], width: int = 0, data: Any = None
    ) -> tuple[tuple[int, ...], Any]:
        """Compare tags with all ranks; returns all widths, and `data` of all ranks, stacked, where there are any.

        `statement` says what the tag stands for, or with `FAILED` under the name "" why. Data are sent where they fit.

        Raises `ArgumentError`, the same on each, if ranks state different arguments, and `BackendError` if a rank has
        failed.
        """
        torch = sys.modules["torch"]
        head = torch.tensor([tag, width])
        every = self._exchange(head) if data is None else self._exchange(head, data)
        heads = torch.stack([of[:_HEAD] for of in every]).view(torch.int64).tolist()
        if tag == FAILED or any(other != tag for other, _ in heads):
            text = json.dumps(statement()).encode().ljust(_TEXT)
            said = self._exchange(torch.frombuffer(bytearray(text), dtype=torch.uint8))
            _refuse([json.loads(bytes(of[:_TEXT].tolist())) for of in said])
        widths = tuple(width for _, width in heads)
        if data is None:
            return widths, None
        sent = torch.stack([of[_HEAD : _HEAD + data.nbytes] for of in every])
        return widths, sent.view(data.dtype).reshape(self.world, *data.shape)

    def collective(self, array: Any, gathers: bool) -> Any:
        """Gather the arrays of all ranks, or add them up in place."""
        if gathers:
            return gather(self.dist, array, self.world, self.group)
        if array.numel():
            self.dist.all_reduce(array, group=self.group)
        return array

    def fits(self, data: Any) -> bool:
        """Whether data go with the tag; the same on all ranks whose tags agree."""
        return bool(data.device.type == "cpu" and 0 < data.nbytes <= _MOST)

    def fail(self, error: Exception) -> None:
        """Take part in the first message of a call as a rank that raises an error."""
        if self.world > 1:
            with suppress(Exception):  # the error itself is what the caller raises
                self.meet(FAILED, lambda: {"": short(f"{type(error).__name__}: {error}", 600)})

    def _exchange(self, *parts: Any) -> Any:
        """Bytes of all ranks, which begin with those that a rank sent. Over gloo these may differ in number."""
        torch = sys.modules["torch"]
        mine = torch.cat([part.reshape(-1).view(torch.uint8) for part in parts])
        if "cpu" not in self.backends:
            return gather(self.dist, mine.to("cuda"), self.world, self.group).cpu()
        size, room = mine.numel(), [_HEAD + _MOST] * self.world
        room[self.rank] = size
        every = torch.empty(sum(room), dtype=torch.uint8)
        self.dist.all_to_all_single(every, mine.repeat(self.world), room, [size] * self.world, group=self.group)
        return every.split(room)


def short(text: str, most: int = 120) -> str:
    """Cut a text to `most` characters, which differ where the texts do."""
    return text if len(text) <= most else f"{text[: most - 20]}... (crc {zlib.crc32(text.encode()):08x})"


def _refuse(said: list[dict[str, str]]) -> NoReturn:
    """Raise the same error on every rank, for the statements of all."""
    if failed := [f"rank {rank}: {words['']}" for rank, words in enumerate(said) if "" in words]:
        raise BackendError(f"this call cannot be made on all ranks; {'; '.join(failed)}")
    for name in ARGUMENTS:
        values = [words.get(name, "nothing") for words in said]
        for rank, value in enumerate(values):
            if value != values[0]:
                got = f"{values[0]} on rank 0 and {value} on rank {rank}"
                raise ArgumentError(name, got, "the same on every rank")
    raise BackendError("ranks are in different calls of ksieve.distributed")
