"""Entry point of ``python -m corral``."""

import sys
from pathlib import Path

import corral

if sys.path[:1] == [str(Path.cwd())] and Path.cwd() != Path(corral.__file__).parents[1]:
    # `python -m` puts the current directory first on the import path, so that a file numpy.py there would hide numpy.
    # It is removed, as for the `corral` command; `import_callable` finds the user's code there without it.
    del sys.path[0]

from corral.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
