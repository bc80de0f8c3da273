"""What the benchmark of labels says of its own worlds: nothing published breaks its budget, and few labels publish."""

from __future__ import annotations

from tests.benchmarks.labels import BUDGET, spent, worlds


def test_the_budget_publishes_from_few_labels_and_is_kept() -> None:
    for data in worlds():
        for rule in ("budget", "active"):
            row = spent(data, rule, 50, 30)
            assert row["published"] > 0.9
            assert row["wrong_out"] <= BUDGET + 3.1 * row["standard_error"]
            assert row["share_out"] > 0.05


def test_a_certificate_takes_more_labels_than_a_budget() -> None:
    for data in worlds():
        assert spent(data, "certificate", 20, 10)["published"] == 0.0
