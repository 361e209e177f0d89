"""The commands, by name: ``python -m rl_plasticity``."""

import runpy
import sys

from rl_plasticity.configs.gone import unknown

COMMANDS = {
    "train": "train an agent on a control task",
    "supervised": "train a network on a sequence of supervised tasks",
    "status": "show which runs are at work, how far they are, when they end, and which failed",
    "compare": "compare what runs have learned, in a table, figures and a web page",
    "benchmark": "score a method on fixed tasks, next to the published methods",
    "diagnose": "find out whether a run's networks still learn as fresh ones do, and what would help",
    "evaluate": "measure the returns of a trained policy",
    "watch": "record a video of a trained policy",
}


def main() -> int:
    """List the commands, or run the one that is named."""
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in ("-h", "--help"):
        print("python -m rl_plasticity.COMMAND ...\n")
        for name, does in COMMANDS.items():
            print(f"  {name:12}{does}")
        print("\npython -m rl_plasticity.COMMAND --help lists the arguments of a command.")
        return 0
    if command not in COMMANDS:
        print(f"rl_plasticity: {unknown('command', command, COMMANDS, f'command {command}')}", file=sys.stderr)
        return 2
    sys.argv[1:] = arguments
    runpy.run_module(f"rl_plasticity.{command}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
