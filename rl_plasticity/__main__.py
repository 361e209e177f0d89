"""The commands, by name: ``python -m rl_plasticity``."""

import runpy
import sys

from rl_plasticity.configs.gone import unknown

COMMANDS = {
    "train": "train an agent on a control task",
    "supervised": "train a network on a sequence of supervised tasks",
    "status": "what runs, how far it is, when it ends, what failed",
    "compare": "a table, figures and a page of what runs have learned",
    "benchmark": "a method's score on fixed tasks, beside those of the published methods",
    "diagnose": "whether a run's networks still learn as fresh ones do, and what would help",
    "evaluate": "the returns of a trained policy",
    "watch": "a trained policy as a video",
}


def main() -> int:
    """Say which commands there are, or run the one that is named."""
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in ("-h", "--help"):
        print("python -m rl_plasticity.COMMAND ...\n")
        for name, does in COMMANDS.items():
            print(f"  {name:12}{does}")
        print("\npython -m rl_plasticity.COMMAND --help says what each takes.")
        return 0
    if command not in COMMANDS:
        print(f"rl_plasticity: {unknown('command', command, COMMANDS, f'command {command}')}", file=sys.stderr)
        return 2
    sys.argv[1:] = arguments
    runpy.run_module(f"rl_plasticity.{command}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
