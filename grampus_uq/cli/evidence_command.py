"""`grampus-uq evidence`: what was shown, decided, signed and run, as a file that verifies without this store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, BinaryIO

import click

from grampus_uq.cli.argument_types import OutputFile, SummarisedGroup
from grampus_uq.cli.printing import as_json_option, one_line, print_result
from grampus_uq.cli.store_options import on_store
from grampus_uq.errors import DataError
from grampus_uq.gate.signatures import PublicKeys
from grampus_uq.recording.whole_file import whole_file
from grampus_uq.runtime.evidence import evidence, verified
from grampus_uq.runtime.store import SessionStore

_LONGEST = 50_000_000


@click.group(name="evidence", cls=SummarisedGroup)
def command() -> None:
    """Export what was shown, decided, signed and executed, and verify such a file offline."""


@command.command()
@on_store
@as_json_option
@click.option("-o", "--output", required=True, type=OutputFile(), metavar="FILE.jsonl", help="Output file.")
async def export(store: SessionStore, as_json: bool, output: str) -> None:
    """Write the evidence file, and print the digest of its last line. Keep the digest out of reach of the store's
    users.

    Verification finds changes within the file by itself; only with the digest does it find that the newest
    entries are missing.
    """
    entries, line = -1, ""  # the first line is no entry
    with whole_file(output) as part, part.open("w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
        async for line in evidence(store):
            file.write(f"{line}\n")
            entries += 1
    digest = json.loads(line)["hash"]
    lines = [f"{entries} entries written to {one_line(output)}.", f"digest     {digest}"]
    print_result(as_json, {"output": output, "entries": entries, "digest": digest}, lines)


@command.command()
@click.argument("file", metavar="FILE.jsonl")
@as_json_option
@click.option("--keys", "keys_file", help='The approvers\' public keys: {"ann": "ed25519:…"}.')
@click.option("--digest", help="Digest of the last line, as printed by `export`.")
@click.option("--required", type=click.IntRange(1), default=1, help="Approvals required per call.")
@click.option("--others-decide", is_flag=True, help="Nobody may decide on a run that they started.")
@click.option(
    "--deputy", "deputies", multiple=True, metavar="NAME", help="A deputy, who decides only in an approver's place."
)
def verify(file: str, as_json: bool, keys_file: str | None, digest: str | None, **policy: Any) -> None:
    """Verify an evidence file. Exit status 1 if anything was changed, or ran without the approval it names.

    Without --keys signatures are not checked; without --digest missing newest entries go unnoticed.
    """
    keys = None if keys_file is None else PublicKeys.from_file(keys_file)
    try:
        with open(file, "rb") as opened:
            found = verified(_lines(opened, file), keys, digest=digest, **policy)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path=file) from error
    signed = "no keys were given" if keys is None else f"{found.signed} with a valid signature"
    lifted = f"{found.by_decision} on decisions, {found.by_permit} on permits or grants"
    lines = [
        f"entries    {found.entries}",
        f"decisions  {found.decisions}: {signed}, {found.shown} with a record of the shown request",
        f"ran        {found.ran}: {lifted}, {found.ran - found.by_decision - found.by_permit} cleared by the monitor",
        f"digest     {found.digest}{'' if digest else ' (not compared: --digest)'}",
        *(f"ERROR      {fault}" for fault in found.faults),
        "The evidence is invalid." if found.faults else "The evidence is valid.",
    ]
    print_result(as_json, asdict(found) | {"holds": not found.faults}, lines)
    if found.faults:
        raise SystemExit(1)


def _lines(file: BinaryIO, path: str) -> Iterator[str]:
    """The lines of a file, each ended by one line feed."""
    while line := file.readline(_LONGEST):
        if not line.endswith(b"\n"):
            raise DataError("has a line that is too long, or was cut off.", path=path)
        try:
            yield line[:-1].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise DataError("is not UTF-8.", path=path) from error
