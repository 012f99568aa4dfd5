"""Fetches the frameworks' files, from a tag of a repository, or from what lies on this machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from frameworks.catalog import FRAMEWORKS

Reader = Callable[[str], bytes]


def fetch(name: str, into: Path, given: str | None = None) -> dict[str, str]:
    """Write a framework's files to a folder, with `source.json` that says where they come from.

    Parameters
    ----------
    name : str
        A framework of the catalog.
    into : Path
        Its files go to ``into / name``, under their paths in the framework's tree.
    given : str, optional
        ``PATH@VERSION``: a git directory and a revision, or an archive and its version, not the catalog's origin.

    Returns
    -------
    dict
        What `source.json` holds.
    """
    framework = FRAMEWORKS[name]
    origin = framework["origin"]
    with tempfile.TemporaryDirectory() as scratch:
        if given is not None:
            path, _, version = given.rpartition("@")
            source = {"origin": "a local copy", "version": version}
            read = _archive(Path(path)) if Path(path).is_file() else _git(path, version, source)
        else:
            version = origin["version"].format(torch=importlib.metadata.version("torch").partition("+")[0])
            source = {"origin": origin["repository"], "version": version}
            _run("git", "clone", "--quiet", "--bare", "--depth=1", "--filter=blob:none", f"--branch={version}",
                 origin["repository"], f"{scratch}/git")  # fmt: skip
            read = _git(f"{scratch}/git", "HEAD", source)
        digests = {}
        for file in [*framework["tests"], *framework.get("files", [])]:
            data = read(file)
            target = into / name / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            digests[file] = hashlib.sha256(data).hexdigest()
    found = {**source, "sha256": digests}
    (into / name / "source.json").write_text(json.dumps(found, indent=1) + "\n")
    return source


def _run(*command: str) -> bytes:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _archive(path: Path) -> Reader:
    """Files of a tar or zip archive, by their paths below its top folder."""
    if zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        names = archive.namelist()
        return lambda file: archive.read(next(name for name in names if name == file or name.endswith(f"/{file}")))
    tar = tarfile.open(path)  # noqa: SIM115
    members = {member.name.partition("/")[2]: member for member in tar}
    return lambda file: tar.extractfile(members[file]).read()  # type: ignore[union-attr]


def _git(folder: str, revision: str, source: dict[str, str]) -> Reader:
    source["commit"] = _run("git", "-C", folder, "rev-parse", f"{revision}^{{commit}}").decode().strip()
    return lambda file: _run("git", "-C", folder, "show", f"{revision}:{file}")
