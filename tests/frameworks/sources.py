"""Fetches the frameworks' files, from a source distribution, a tag of a repository, or what lies on this machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from frameworks.catalog import FRAMEWORKS

BACKEND = '''"""Answers pip, which asks for metadata before it keeps a source distribution, and runs no code of it."""
import re
from email.parser import Parser
from pathlib import Path

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    text = Path("PKG-INFO").read_text()
    fields = Parser().parsestr(text)
    folder = f"{re.sub('[-.]+', '_', fields['Name'])}-{fields['Version']}.dist-info"
    Path(metadata_directory, folder).mkdir(parents=True)
    Path(metadata_directory, folder, "METADATA").write_text(text)
    return folder
'''

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
        elif "distribution" in origin:
            source = {"origin": f"source distribution {origin['distribution']}", "version": origin["version"]}
            read = _archive(_distribution(origin["distribution"], origin["version"], scratch))
        else:
            version = origin["version"].format(torch=_release("torch"))
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


def _release(distribution: str) -> str:
    return re.split("[+]", importlib.metadata.version(distribution))[0]


def _run(*command: str, **options: object) -> bytes:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, **options).stdout  # type: ignore[call-overload]


def _distribution(name: str, version: str, scratch: str) -> Path:
    backend = Path(scratch, "backend", "setuptools")
    backend.mkdir(parents=True)
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(BACKEND)
    _run(
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--no-build-isolation",
        f"--dest={scratch}", f"{name}=={version}", env=os.environ | {"PYTHONPATH": str(backend.parent)},
    )  # fmt: skip
    return next(path for path in Path(scratch).iterdir() if path.is_file())


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
