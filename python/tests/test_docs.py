"""The code on each page of docs/python, run as it stands there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "python"
BLOCK = re.compile(r"^```python ?(\w*)\n(.*?)^```", re.M | re.S)


@pytest.fixture(scope="session")
def place(
    tmp_path_factory: pytest.TempPathFactory, morse: Path, arrays: Path, documents: Path, tokenizer: Path
) -> Path:
    """A folder with the data that the pages speak of."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(morse, folder / "data" / "morse")
    shutil.copytree(arrays, folder / "data" / "features")
    shutil.copy(documents, folder / "data" / "documents.jsonl")
    shutil.copytree(tokenizer, folder / "model")
    (folder / "runs").mkdir()
    return folder


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md") if path.name != "README.md"))
def test_the_code_of_a_page_runs(page: str, place: Path) -> None:
    blocks: dict[str, list[str]] = {}
    for needs, code in BLOCK.findall((PAGES / page).read_text(encoding="utf-8")):
        blocks.setdefault(needs, []).append(code)
    assert blocks, "a page without code"
    for needs, codes in blocks.items():
        if needs and importlib.util.find_spec(needs) is None:
            pytest.skip(f"{needs} is not installed")
        script = place / f"{Path(page).stem}_{needs}.py"
        script.write_text("\n".join(codes), encoding="utf-8")
        ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_RANK": "0"}
        extra = ranks if page == "torchrun.md" else {}
        done = subprocess.run(
            [sys.executable, script.name], cwd=place, env={**os.environ, **extra}, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_every_page_is_listed() -> None:
    listed = set(re.findall(r"\]\((\w+\.md)\)", (PAGES / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in PAGES.glob("*.md")} - {"README.md"}
