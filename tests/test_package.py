"""Rules that hold for the package as a whole."""

import subprocess
import sys
from pathlib import Path

import pytest

import corral
from corral.core.metrics import METRICS

ROOT = Path(__file__).parents[1]


def test_importing_corral_loads_nothing_heavy():
    code = (
        "import sys, corral; print([m for m in ('torch', 'ray', 'gymnasium', 'numpy', 'pydantic') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_workers_load_no_torch():
    code = (
        "import sys, corral.vec.worker, corral.rollout.worker, corral.opponents.matches; print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_every_public_name_exists_and_is_documented():
    for name in corral.__all__:
        assert name == "__version__" or getattr(corral, name).__doc__


def test_the_former_import_path_of_sweeps_works():
    from corral.recipes.sweep import resume_sweep, sweep
    from corral.sweeps import api

    assert (sweep, resume_sweep) == (api.sweep, api.resume_sweep)


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        corral.nothing  # noqa: B018


def test_every_metric_and_its_meaning_is_in_the_docs():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert not [name for name, meaning in METRICS.items() if name not in page or meaning not in page]


def test_no_source_file_has_more_than_420_lines():
    long_files = {
        path.name: n_lines
        for path in (ROOT / "src").rglob("*.py")
        if (n_lines := len(path.read_text(encoding="utf-8").splitlines())) > 420
    }
    assert not long_files
