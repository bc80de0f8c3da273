"""`grampus-uq health`: how often people are asked, how often for a right call, what it costs, what runs."""

from __future__ import annotations

from dataclasses import asdict

import click

from grampus_uq.cli.argument_types import FiniteRange
from grampus_uq.cli.printing import as_json_option, print_result
from grampus_uq.cli.store_options import on_store
from grampus_uq.runtime.health import health_in_words, store_health
from grampus_uq.runtime.store import SessionStore


@click.command(name="health")
@on_store
@as_json_option
@click.option("--days", type=FiniteRange(0.01, 3_650.0), default=7.0, help="Length of the window.")
@click.option("--budget", type=FiniteRange(0.0, 1e6), help="Largest acceptable number of pauses per day.")
@click.option("--check", is_flag=True, help="Exit with 1 if there are more pauses than the budget.")
async def command(store: SessionStore, as_json: bool, days: float, budget: float | None, check: bool) -> None:
    """Report the state of a store's agents and reviewers over the last days."""
    if check and budget is None:
        raise click.UsageError("--check belongs to --budget: without one, no number of pauses is too many.")
    found = await store_health(store, days=days, budget_a_day=budget)
    lines = (f"{name:<10} {words}" for name, words in health_in_words(found).items())
    print_result(as_json, asdict(found), lines)
    if check and found.over_budget:
        raise SystemExit(1)
