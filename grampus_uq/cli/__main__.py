"""`python -m grampus_uq.cli` is the command line where the script is not on the path."""

from __future__ import annotations

from grampus_uq.cli import main

main()
