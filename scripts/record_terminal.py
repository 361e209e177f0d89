"""Run commands in a terminal and draw what they print: ``python scripts/record_terminal.py FILE.svg COMMAND ...``.

The pictures of README and site, in about five minutes each on one core, in a folder without a/:

    python scripts/record_terminal.py docs/terminal.svg \\
        'python -m rl_plasticity.supervised preset=demo "reg=[none,spectral]" reg.spectral.coef=1e-3 seeds=5 out=a' \\
        'python -m rl_plasticity.compare a'
    python -m rl_plasticity.supervised preset=demo "reg=[none,spectral]" reg.spectral.coef=1e-3 out=b
    python scripts/record_terminal.py docs/terminal-diagnose.svg 'python -m rl_plasticity.diagnose b'
"""

import io
import os
import pty
import re
import sys

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

WIDTH = 110


def shown(command: str) -> str:
    """What a terminal of `WIDTH` columns shows in the end, with the progress bars as they ended."""
    chunks = []

    def read(descriptor: int) -> bytes:
        chunks.append(os.read(descriptor, 4096))
        return chunks[-1]

    pty.spawn(["bash", "-c", f"stty cols {WIDTH}; {command}"], read)
    lines = b"".join(chunks).decode().replace("\r\n", "\n").split("\n")
    return "\n".join(re.sub(r"\x1b\[[AK]", "", line).rstrip("\r").rpartition("\r")[2].rstrip() for line in lines)


def main(file: str, *commands: str) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command in commands:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(shown(command)))
    format = re.sub(r"@font-face {{.*?}}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # which is loaded from elsewhere
    console.save_svg(file, title="rl_plasticity", code_format=format, unique_id="terminal")


if __name__ == "__main__":
    main(*sys.argv[1:])
