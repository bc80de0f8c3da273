"""Draw README's picture from what `grampus-uq demo` prints: python -m tests.benchmarks.demo_picture [--seed 0]."""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[2] / "docs" / "demo.svg"


def main() -> None:
    """Run the demo in a folder of its own, and save its report as an SVG that loads nothing from anywhere."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    command = [sys.executable, "-m", "grampus_uq.cli", "demo", "--seed", str(parser.parse_args().seed)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    console = Console(record=True, width=100, file=io.StringIO())
    for line in done.stdout.splitlines():
        console.print(Text(line, style="bold red" if "^" in line else ""))
    picture = console.export_svg(title="grampus-uq demo", unique_id="demo")
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
