"""Options of commands on a session store: which store, who acts, with which key; and work on the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial, wraps
from typing import Any, Final, TypeVar

import anyio
import click

from grampus_uq.cli.argument_types import login_name
from grampus_uq.cli.printing import print_lines
from grampus_uq.errors import ConfigurationError
from grampus_uq.gate.signatures import Ed25519Signer, HmacSigner, PublicKeys, signer_from_environment
from grampus_uq.runtime.store import SessionStore
from grampus_uq.runtime.stores import open_store

_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound=Callable[..., Any])
Signer = HmacSigner | Ed25519Signer

STORE_HELP: Final = "Session store: sqlite:///FILE, postgresql://… or redis://…."
_store = partial(click.option, "--store", required=True, envvar="GRAMPUS_UQ_STORE", show_envvar=True)
store_option = _store("url", help=STORE_HELP)
several_stores_option = _store("urls", multiple=True, help="Session store; repeat for the stores of several tenants.")

_key_option = click.option(
    "--key",
    "signer",
    callback=lambda _ctx, _param, file: signer_from_environment() if file is None else Ed25519Signer.from_file(file),
    help="File with the private key of `approvals keygen` (or from the environment).",
)
"""The signer of a key file, else of the environment; None without either."""
_keys_option = click.option(
    "--keys",
    "keys_file",
    envvar="GRAMPUS_UQ_APPROVERS_FILE",
    show_envvar=True,
    help="The approvers' public keys, as the runner has them: who signs with another's key is refused.",
)


def as_option(who: str) -> Callable[[_Command], _Command]:
    """The option `--as`, whose help says who that is."""
    return click.option(
        "--as",
        "principal",
        callback=lambda _ctx, _param, name: name or login_name(),
        help=f"{who}.  [default: the login name]",
    )


def signing(who: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """The options `--as`, `--key` and `--keys` of a command that signs, which gets `principal` and `signer`."""

    def decorated(work: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        @wraps(work)
        async def command(*, principal: str | None, signer: Signer | None, keys_file: str | None, **given: Any) -> None:
            name, why = _signs_as(principal, signer, keys_file)
            await work(principal=name, signer=signer, **given)
            if principal is None and signer is not None:  # an error stands alone
                print_lines([f"Signed as {name}, {why}"], err=True)

        help_ = f"{who}.  [default: the owner of the key by --keys, or the login name]"
        return click.option("--as", "principal", help=help_)(_key_option(_keys_option(command)))

    return decorated


def _signs_as(given: str | None, signer: Signer | None, keys_file: str | None) -> tuple[str, str]:
    """Who signs, and why that person. Raises ConfigurationError for a name that is not the key's."""
    keys = None if keys_file is None else PublicKeys.from_file(keys_file)
    owners = set() if keys is None else keys.principals
    if keys is not None and isinstance(signer, Ed25519Signer):
        text = b"whose key is this?"
        owners = {name for name in owners if keys.verifies(name, text, signer.signature(text))}
    owned = given is None and isinstance(signer, Ed25519Signer) and len(owners) == 1
    name = next(iter(owners)) if owned else given or login_name()
    if keys is not None and name not in owners:
        rule = f"the owner of the key by {keys_file}: {', '.join(sorted(owners)) or 'nobody'}"
        raise ConfigurationError.of("--as", "--key", rule, name)
    return name, "the owner of the key." if owned else "the login name: --as NAME signs as another."


def on_store(work: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A command as a coroutine, which gets the opened store of `--store` as `store`."""

    @store_option
    @wraps(work)
    def command(*, url: str, **given: Any) -> None:
        with_stores([url], lambda stores: work(store=stores[0], **given))

    return command


def with_stores(
    urls: Sequence[str], work: Callable[[Sequence[SessionStore]], Awaitable[_Result]], *, create: bool = False
) -> _Result:
    """Open the stores, wait for `work` on them, and close them; one that does not exist is made only with `create`."""

    async def run() -> _Result:
        async with AsyncExitStack() as opened:
            stores = [open_store(url, create=create) for url in urls]
            for store in stores:
                opened.push_async_callback(store.aclose)
            return await work(stores)

    return anyio.run(run)
