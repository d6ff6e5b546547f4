"""Examples in README and docs work as printed: Python blocks run, commands parse, links point to existing files."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from corral.cli.verbs import build_parsers

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def code_blocks(page, language):
    """Return the fenced code blocks of one language in a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


@pytest.mark.parametrize("page", [page for page in PAGES if code_blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_run_in_order(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(code_blocks(page, "python")))
    completed = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if code_blocks(page, "bash")], ids=lambda page: page.name)
def test_corral_commands_parse(page):
    _, verbs = build_parsers()
    commands = [
        line for block in code_blocks(page, "bash") for line in block.splitlines() if line.startswith("corral ")
    ]
    for command in commands:
        _, verb, *arguments = shlex.split(command, comments=True)
        verbs[verb][0].parse_args(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_point_to_existing_files(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert not [target for target in targets if "://" not in target and not (page.parent / target).exists()]


def test_make_targets_that_the_docs_name_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {
        name
        for page in PAGES
        for name in re.findall(r"`?make ([a-z][a-z0-9-]*)\b`?", "\n".join(code_blocks(page, "bash")))
    }
    assert targets and all(re.search(rf"^{name}:", makefile, flags=re.M) for name in targets)
