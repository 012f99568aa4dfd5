"""The command that adds an extra is of the way in which this ksieve came."""

from __future__ import annotations

import json
from importlib import metadata
from types import SimpleNamespace

import pytest

from ksieve.core import installation

WHEEL = {"url": "file:///home/me/ksieve-0.1.0-py3-none-any.whl", "archive_info": {}}
FOLDER = {"url": "file:///home/me/ksieve", "dir_info": {}}
GIT = {"url": "https://host/ksieve.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


@pytest.mark.parametrize(
    ("origin", "extra", "lab"),
    [
        (json.dumps(WHEEL), "'ksieve[torch] @ file:///home/me/ksieve-0.1.0-py3-none-any.whl'",
         "'ksieve-lab @ file:///home/me/ksieve_lab-0.1.0-py3-none-any.whl'"),
        (json.dumps(FOLDER), "'ksieve[torch] @ file:///home/me/ksieve'", "'ksieve-lab @ file:///home/me/ksieve/lab'"),
        (json.dumps(GIT), "'ksieve[torch] @ git+https://host/ksieve.git@abc'",
         "'ksieve-lab @ git+https://host/ksieve.git@abc#subdirectory=lab'"),
        (None, "'ksieve[torch]'", "'ksieve-lab'"),
        ("{", "'ksieve[torch]'", "'ksieve-lab'"),
    ],
)  # fmt: skip
def test_of_an_installed_package(tmp_path, monkeypatch, origin, extra, lab):
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "site" / "ksieve" / "core" / "installation.py"))
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: origin))
    assert installation.install_command("torch") == f"pip install {extra}"
    assert installation.install_command(name="ksieve-lab") == f"pip install {lab}"


def test_of_a_clone(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "src" / "ksieve" / "core" / "installation.py"))
    assert installation.install_command("cuda") == f"pip install -e '{tmp_path}[cuda]'"
    assert installation.install_command("plot", "ksieve-lab") == f"pip install -e '{tmp_path}/lab[plot]'"
