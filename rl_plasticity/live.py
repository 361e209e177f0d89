"""Say what replaces the removed command ``live``."""

import sys

from rl_plasticity.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "live")
    sys.exit(main())
