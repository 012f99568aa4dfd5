"""How this installation came, so that a message can say how to add to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ksieve.core.errors import BackendError


def version_of(distribution: str) -> str | None:
    """Version of an installed distribution; None if it is absent."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def install_command(extra: str = "", name: str = "ksieve") -> str:
    """Command that adds an extra, or ksieve-lab, from where this ksieve came: a clone, a wheel or an index.

    `name`: "ksieve" or "ksieve-lab".
    """
    extras, lab = f"[{extra}]" if extra else "", name == "ksieve-lab"
    tree = Path(__file__).parents[3]
    if (tree / "pyproject.toml").is_file():
        return f"pip install -e '{tree / 'lab' if lab else tree}{extras}'"
    import json
    from importlib import metadata

    try:
        origin = json.loads(metadata.distribution("ksieve").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = origin.get("url", "")
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}{'#subdirectory=lab' * lab}"
    elif "dir_info" in origin:
        url += "/lab" * lab
    elif lab:  # the wheels of a release lie together
        url = url.replace("/ksieve-", "/ksieve_lab-")
    return f"pip install '{name}{extras}{f' @ {url}' if url else ''}'"


def require_torch(why: str, instead: str = "") -> Any:
    """Import PyTorch; a `BackendError` says why it is needed, how it is installed, and what serves instead."""
    try:
        import torch
    except ImportError as error:
        raise BackendError(f"{why}: {install_command('torch')}{instead}") from error
    return torch
