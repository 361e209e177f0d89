"""Where the papers' figures went: ``python -m papers``, in a checkout."""

import runpy
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]

if __name__ == "__main__":
    there = (CHECKOUT / "papers" / "__main__.py").is_file()
    how = "" if there else " in a checkout of the repository: clone it"
    print(f"rl_plasticity.reproduce is now python -m papers{how}", file=sys.stderr)
    if not there:
        sys.exit(2)
    sys.path.insert(0, str(CHECKOUT))
    runpy.run_module("papers", run_name="__main__", alter_sys=True)
