"""The wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile

from conftest import ROOT


def test_the_wheel_has_all_and_only_the_package(tmp_path):
    # Building leaves things behind, so not in the sources.
    source = tmp_path / "python"
    shutil.copytree(ROOT / "client/python", source, ignore=shutil.ignore_patterns("__pycache__"))
    command = "pip wheel -q --no-deps --no-build-isolation --disable-pip-version-check -w".split()
    subprocess.run([sys.executable, "-m", *command, tmp_path, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")  # pure Python
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}
    there = {
        str(path.relative_to(source))
        for path in (source / "embcache").rglob("*")
        if path.suffix in (".py", ".pyi", ".typed")
    }
    assert packed == there
    assert "embcache/py.typed" in packed and "embcache/v1/embcache_pb2.pyi" in packed
