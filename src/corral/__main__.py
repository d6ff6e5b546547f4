"""``python -m corral``."""

import sys
from pathlib import Path

import corral

if sys.path[:1] == [str(Path.cwd())] and Path.cwd() != Path(corral.__file__).parents[1]:
    # `python -m` puts the current directory first on the import path, where a stray numpy.py would be taken for numpy.
    # The `corral` command does not; code that the user names is found there all the same.
    del sys.path[0]

from corral.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
