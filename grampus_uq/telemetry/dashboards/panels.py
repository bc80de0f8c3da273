"""Every panel of the dashboard: what it asks Prometheus, and what an operator learns from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from grampus_uq.telemetry.dashboards.metric_names import prometheus_name

__all__ = ["PANELS", "Panel", "Query", "panels"]

_WHERE: Final = '{job=~"$job", agent_id=~"$agent"}'
_ALL_AGENTS: Final = '{job=~"$job"}'  # gauges that are no agent's
_RATE: Final = "[$__rate_interval]"
_RANGE: Final = "[$__range]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression, and the name of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `tells` is shown with it: what it means, and what to do. `limit` draws a line."""

    title: str
    tells: str
    kind: Literal["stat", "timeseries", "heatmap"]
    queries: tuple[Query, ...]
    unit: str = "short"
    width: int = 12
    stacked: bool = False
    limit: float | None = None
    most: float | None = None


def _sum(name: str, by: str, *, over: str = _RATE, function: str = "rate") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} ({function}({prometheus_name(name)}{_WHERE}{over}))"


def _quantiles(name: str, *quantiles: float) -> tuple[Query, ...]:
    buckets = f"sum by (le) (rate({prometheus_name(name)}_bucket{_WHERE}{_RATE}))"
    return tuple(
        Query(expr=f"histogram_quantile({quantile:g}, {buckets})", legend=f"{quantile:.0%}") for quantile in quantiles
    )


def _increase(name: str) -> str:
    return _sum(name, "", over=_RANGE, function="increase")


def _stat(title: str, tells: str, expr: str, *, unit: str = "short", limit: float | None = None) -> Panel:
    return Panel(title=title, tells=tells, kind="stat", queries=(Query(expr=expr),), unit=unit, width=4, limit=limit)


def panels(*, alpha: float = 0.05, watch_log_threshold: float = 4.605170185988092) -> tuple[Panel, ...]:
    """The panels in their order; lines are drawn at `alpha` and at `watch_log_threshold`, a natural log."""
    return (*_now(alpha), *_decisions(), *_beliefs(), *_guarantees(watch_log_threshold), *_monitor_itself())


def _now(alpha: float) -> tuple[Panel, ...]:
    alarms, begun = _increase("uncertainty.alarms"), _increase("uncertainty.sessions")
    pending = prometheus_name("uncertainty.approvals.pending")
    return (
        _stat("Runs", "Runs that began in the time shown. Zero while agents work: nothing is being watched.", begun),
        _stat(
            "Waiting for a human",
            "Approvals that wait now. Agents stand still behind them: `grampus-uq approvals list`.",
            f"max({pending}{_ALL_AGENTS})",
            limit=1,
        ),
        _stat(
            "Alarms per run",
            f"A detector fitted with alpha {alpha:g} rings on at most that share of the runs that go well. Above it, "
            "more runs fail than before, or the calibration no longer fits: look at the calibration watch.",
            f"{alarms} / {begun}",
            unit="percentunit",
            limit=alpha,
        ),
        _stat(
            "Steps that stopped",
            "Share of steps after which the agent did not go on by itself. Near 1, the policy's thresholds do not fit "
            "the agent; zero for days, nothing is being caught or the monitor is advisory.",
            f"({_stopping()} or vector(0)) / {_increase('uncertainty.actions')}",
            unit="percentunit",
        ),
        _stat(
            "Monitor's cost",
            "What the monitor's own model calls cost, as far as prices are known.",
            _increase("uncertainty.monitor.cost"),
            unit="currencyUSD",
        ),
        _stat(
            "Telemetry dropped",
            "Events that were dropped because a backend was too slow or gone. Above zero, what you see is not all "
            "there was; recordings are not affected.",
            f"sum(increase({prometheus_name('uncertainty.telemetry.dropped')}{_ALL_AGENTS}{_RANGE}))",
            limit=1,
        ),
    )


def _stopping() -> str:
    where = _WHERE.replace("}", ', action=~"pause_for_human|abort"}')
    return f"sum(increase({prometheus_name('uncertainty.actions')}{where}{_RANGE}))"


def _decisions() -> tuple[Panel, ...]:
    return (
        Panel(
            title="Actions",
            tells="Steps a second by what was decided. A rise of pauses after a deployment is the deployment's.",
            kind="timeseries",
            queries=(Query(expr=_sum("uncertainty.actions", "action"), legend="{{action}}"),),
            unit="ops",
            stacked=True,
        ),
        Panel(
            title="Escalations by level and rule",
            tells="Steps that were grave or stopped, by the rule that decided. `irreversible_override` holds calls "
            "that cannot be undone, `missing_evidence` says that signals fail, `detector` carries a guarantee.",
            kind="timeseries",
            queries=(Query(expr=_sum("uncertainty.escalations", "level, rule"), legend="{{level}} {{rule}}"),),
            unit="ops",
            stacked=True,
        ),
    )


def _beliefs() -> tuple[Panel, ...]:
    name = "uncertainty.confidence.propagated"
    return (
        Panel(
            title="Confidence in the run",
            tells="Propagated confidence of the steps: the median, and the lowest tenth and hundredth, which are what "
            "is paused. All three falling together is the model or the task; the lowest alone, some of the runs.",
            kind="timeseries",
            queries=_quantiles(name, 0.5, 0.1, 0.01),
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            title="Confidence in the run, all steps",
            tells="How the same steps are spread. Two bands are two kinds of runs: look at the lower one's traces.",
            kind="heatmap",
            queries=(
                Query(expr=f"sum by (le) (rate({prometheus_name(name)}_bucket{_WHERE}{_RATE}))", legend="{{le}}"),
            ),
        ),
        Panel(
            title="Confidence read at a step",
            tells="Fused readings, before they are propagated, of the steps at which something was read.",
            kind="timeseries",
            queries=_quantiles("uncertainty.confidence.fused", 0.5, 0.1),
            unit="percentunit",
            most=1.0,
        ),
        Panel(
            title="Probability of success",
            tells="Calibrated, where a profile is fitted: of runs shown at 0.8, four in five should succeed. "
            "`grampus-uq evaluate` says whether they do. Empty without a fitted profile.",
            kind="timeseries",
            queries=_quantiles("uncertainty.p_success", 0.5, 0.1),
            unit="percentunit",
            most=1.0,
        ),
    )


def _guarantees(watch_log_threshold: float) -> tuple[Panel, ...]:
    watch = prometheus_name("uncertainty.calibration.watch")
    return (
        Panel(
            title="Alarms begun",
            tells="Alarms of the fitted detector in each interval, by the theorem that stands behind its threshold.",
            kind="timeseries",
            queries=(Query(expr=_sum("uncertainty.alarms", "mode", function="increase"), legend="{{mode}}"),),
        ),
        Panel(
            title="Evidence of failure",
            tells="Natural log of the detector's evidence, of all steps: 3.0 is the threshold of alpha 0.05 by Ville's "
            "inequality, 4.6 of 0.01. The highest hundredth is what rings.",
            kind="timeseries",
            queries=_quantiles("uncertainty.detector.log_m", 0.5, 0.9, 0.99),
        ),
        Panel(
            title="Calibration watch",
            tells="Natural log of the martingale that watches the calibration. Above the line new runs are not like "
            "those that the detector was calibrated on, and its guarantee does not hold: fit again on recent runs.",
            kind="timeseries",
            queries=(Query(expr=f"max by (variant) ({watch}{_ALL_AGENTS})", legend="{{variant}}"),),
            limit=round(watch_log_threshold, 3),
        ),
        Panel(
            title="Trajectory risk",
            tells="TRACER's risk of the run so far, higher is worse: repetition, incoherence and tool errors add up. "
            "Its scale is the profile's; watch for change.",
            kind="timeseries",
            queries=_quantiles("uncertainty.trajectory_risk", 0.5, 0.9, 0.99),
        ),
    )


def _monitor_itself() -> tuple[Panel, ...]:
    hourly = "sum(rate({}{}{})) * 3600"
    calls, tokens, cost = (prometheus_name(f"uncertainty.monitor.{what}") for what in ("calls", "tokens", "cost"))
    return (
        Panel(
            title="Time of sensing",
            tells="From a step to its assessment: what monitoring adds to a step of the agent. Bound it with the "
            "budget of the profile.",
            kind="timeseries",
            queries=_quantiles("uncertainty.sensing.duration", 0.5, 0.95, 0.99),
            unit="s",
        ),
        Panel(
            title="Readings without a value",
            tells="By signal and reason. `timeout` and `rate_limited` are the judging model's, `not_stated` and "
            "`no_logprobs` the agent's model's. Steps without evidence hold irreversible calls.",
            kind="timeseries",
            queries=(
                Query(expr=_sum("uncertainty.signal.failures", "source, reason"), legend="{{source}} {{reason}}"),
            ),
            unit="ops",
        ),
        Panel(
            title="Monitor's model calls",
            tells="Calls and tokens of the monitor's own, in an hour.",
            kind="timeseries",
            queries=(
                Query(expr=hourly.format(calls, _WHERE, _RATE), legend="calls"),
                Query(expr=hourly.format(tokens, _WHERE, _RATE), legend="tokens"),
            ),
        ),
        Panel(
            title="Monitor's cost in an hour",
            tells="US dollars, as far as prices are known.",
            kind="timeseries",
            queries=(Query(expr=hourly.format(cost, _WHERE, _RATE), legend="USD"),),
            unit="currencyUSD",
        ),
        Panel(
            title="Waiting for a human, over time",
            tells="A line that only rises: nobody decides.",
            kind="timeseries",
            queries=(
                Query(
                    expr=f"max by (job) ({prometheus_name('uncertainty.approvals.pending')}{_ALL_AGENTS})",
                    legend="{{job}}",
                ),
            ),
        ),
        Panel(
            title="Telemetry dropped, by processor",
            tells="Which processor could not keep up.",
            kind="timeseries",
            queries=(
                Query(
                    expr=f"sum by (processor) "
                    f"(rate({prometheus_name('uncertainty.telemetry.dropped')}{_ALL_AGENTS}{_RATE}))",
                    legend="{{processor}}",
                ),
            ),
            unit="ops",
        ),
    )


PANELS: Final = panels()
"""The panels with the default lines."""
