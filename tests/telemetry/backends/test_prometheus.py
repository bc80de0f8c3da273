"""Against Debian's Prometheus: a real monitor is scraped, every panel shows something, and the alerts ring when due."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from grampus_uq import (
    Effect,
    Message,
    Profile,
    Reading,
    Role,
    Step,
    ToolCall,
    UncertaintyMonitor,
    UncertaintyPolicy,
)
from grampus_uq.core.risk import TrajectoryRiskSettings
from grampus_uq.monitor.session import Session
from grampus_uq.stats.fusion import FusedReading, LogisticFusion
from grampus_uq.telemetry import GrampusMeters, MetricsProcessor
from grampus_uq.telemetry.dashboards import stack_files, write_stack
from grampus_uq.testing import ScriptedModel, answer
from tests.core.test_alarm import fitted
from tests.telemetry.backends.servers import get_json, prometheus, prometheus_tools, wait_until
from tests.telemetry.backends.shown import alert_rules, panels

pytestmark = pytest.mark.slow

PROMPT = (Message(role=Role.USER, content="Pay the rent."),)
VARIABLES = {"$__rate_interval": "5m", "$__range": "5m", "$job": ".*", "$agent": ".*"}
"""What Grafana puts in their place: from before the first run, which a slow machine takes long over."""


class Shaky:
    """What only an application has: a queue of approvals, a watch on its calibration, and a processor that drops."""

    dropped = 0
    log_martingale = 0.7

    def __init__(self) -> None:
        self.waiting = 2

    def on_event(self, event: object) -> None:
        self.dropped += 1


class Watched:
    """A monitor with everything fitted that has a metric, on a page of its own."""

    def __init__(self) -> None:
        self.shaky = Shaky()
        self.meters = GrampusMeters(service_name="desk", prometheus_port=0)
        processor = MetricsProcessor(
            self.meters.provider,
            agent_ids=["desk"],
            pending_approvals=lambda: self.shaky.waiting,
            calibration_watch=lambda: {"good_runs": self.shaky},
            dropping=[self.shaky],
        )
        fusion = LogisticFusion(readings={"verbalized": FusedReading(mean=0.0, sd=1.0, slope=1.0)}, intercept=0.0)
        profile = Profile(
            detector=fitted(),
            calibration=fusion,
            trajectory_risk=TrajectoryRiskSettings(),
            policy=UncertaintyPolicy(irreversible_tool_names=["send"]),
        )
        self.monitor = UncertaintyMonitor(profile=profile, processors=[processor, self.shaky])
        self.runs = 0
        self.seen_s: float | None = None
        """When everything had been scraped: on a slow machine a later scrape may fail, and its series are stale."""

    @property
    def target(self) -> str:
        assert self.meters.prometheus is not None
        return f"127.0.0.1:{self.meters.prometheus.port}"

    def run(self, confidence: float) -> None:
        """One run: it asks a model that costs money, one signal fails, and it drifts if it is unsure."""
        self.runs += 1
        session = self.monitor.session(f"run-{self.runs}", "desk")
        anyio.run(self._asked, session, confidence)
        for index in range(10):
            step = Step(step_id=f"s{index}", kind="llm_call", time_s=float(index), text=f"I try {index}.")
            readings = [
                Reading(source="verbalized", value=confidence, calls=1, input_tokens=9, output_tokens=1, cost_usd=0.01),
                Reading(source="p_true", value=None, reason="timeout"),
            ]
            session.commit(step, readings)

    async def _asked(self, session: Session, confidence: float) -> None:
        model = ScriptedModel(lambda *_: answer(str(confidence), usage=(7, 3)))
        await session.observe_llm_response(
            f"Confidence: {confidence:.0%}", "ask", prompt_messages=PROMPT, model_client=model
        )
        await session.observe_tool_call(ToolCall(id="c", name="send"), "send", effect=Effect.IRREVERSIBLE)


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    pytest.importorskip("sklearn", reason="fitting needs the extra 'fit', which 'test' brings")
    found = Watched()
    yield found
    found.meters.shutdown()


@pytest.fixture(scope="module")
def scraping(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that scrapes the monitor, with the package's alerts, once it has seen runs in several scrapes."""
    folder = tmp_path_factory.mktemp("prometheus")
    alerts = stack_files()["alerts.yml"]
    (folder / "alerts.yml").write_text(alerts.replace("[1h])) > 10", "[1h])) > 0.01"))
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "desk", "static_configs": [{"targets": [watched.target]}]}],
    }
    with prometheus(folder, configuration) as url:
        for _ in range(8):
            seen = scrapes(url)
            watched.run(0.8)
            watched.run(0.1)
            wait_until(lambda seen=seen: scrapes(url) > seen, "a scrape")  # type: ignore[misc]
        seen = scrapes(url)
        wait_until(lambda: scrapes(url) > seen + 1, "a scrape that began after the last run")
        (last,) = query(url, 'last_over_time(timestamp(up{job="desk"} == 1)[10m:1s])')
        watched.seen_s = float(last["value"][1])
        yield url


def query(url: str, expression: str, at_s: float | None = None) -> list[Any]:
    when = "" if at_s is None else f"&time={at_s}"
    found = get_json(f"{url}/api/v1/query?query={urllib.parse.quote(expression)}{when}")
    assert found["status"] == "success", found
    result: list[Any] = found["data"]["result"]
    return result


def scrapes(url: str) -> int:
    found = query(url, 'sum_over_time(up{job="desk"}[10m])')
    return int(found[0]["value"][1]) if found else 0


def filled_in(expression: str) -> str:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}-{index}")
    for panel in panels()
    for index, target in enumerate(panel["targets"])
]


@pytest.mark.parametrize("expression", QUERIES)
def test_every_query_of_every_panel_finds_numbers(scraping: str, watched: Watched, expression: str) -> None:
    found = query(scraping, filled_in(expression), watched.seen_s)
    assert found, "an empty panel"
    numbers = [float(series["value"][1]) for series in found]
    assert any(number == number for number in numbers), f"nothing but NaN: {found}"


def test_the_numbers_are_those_of_the_runs(scraping: str, watched: Watched) -> None:
    """Not only something: the sums that Prometheus holds are what was done."""
    steps = 12 * watched.runs

    def total(expression: str) -> float:
        return float(query(scraping, expression, watched.seen_s)[0]["value"][1])

    assert total("sum(uncertainty_sessions_total)") == watched.runs
    assert total("sum(uncertainty_actions_total)") == steps
    assert total('sum(uncertainty_alarms_total{agent_id="desk"})') == watched.runs / 2
    assert total("sum(uncertainty_monitor_cost_USD_total)") == pytest.approx(0.1 * watched.runs)
    assert total('sum(uncertainty_signal_failures_total{source="p_true",reason="timeout"})') == 10 * watched.runs
    assert total("uncertainty_confidence_propagated_count") == steps
    assert total("max(uncertainty_approvals_pending)") == 2


def test_no_series_has_more_labels_than_its_instrument_says(scraping: str, watched: Watched) -> None:
    held = query(scraping, '{__name__=~"uncertainty_.*"}', watched.seen_s)
    labels = {label for series in held for label in series["metric"]}
    known = {"__name__", "job", "instance", "agent_id", "le", "action", "step_type", "level", "rule", "mode"}
    assert labels <= known | {"source", "reason", "processor", "variant", "otel_scope_name", "otel_scope_version"}
    assert "run-1" not in json.dumps(held)


def test_the_alerts_are_loaded_without_a_word_and_the_cost_alert_rings(scraping: str) -> None:
    def rules() -> dict[str, Any]:
        (group,) = get_json(f"{scraping}/api/v1/rules")["data"]["groups"]
        return {rule["name"]: rule for rule in group["rules"]}

    wait_until(lambda: all(rule["health"] == "ok" for rule in rules().values()), "an evaluation of every rule")
    assert len(rules()) == len(alert_rules())
    wait_until(lambda: rules()["GrampusMonitorCost"]["state"] == "firing", "the alert on the monitor's cost")
    assert "US dollars" in rules()["GrampusMonitorCost"]["alerts"][0]["annotations"]["description"]
    wait_until(lambda: rules()["GrampusTelemetryDropped"]["state"] == "firing", "the alert on what was dropped")
    assert rules()["GrampusCalibrationWatchCrossed"]["state"] == "inactive"  # 0.7 is far below ln 100


# -- promtool --


def promtool(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(prometheus_tools() / "promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, check=False)


def test_promtool_finds_nothing_wrong_with_the_rules_and_the_configuration(tmp_path: Path) -> None:
    write_stack(tmp_path)
    for kind, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = promtool("check", kind, name, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "FAILED" not in done.stdout + done.stderr
    text = (tmp_path / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(text.replace("sum by (job)", "sum by job", 1))
    assert promtool("check", "rules", "alerts.yml", folder=tmp_path).returncode != 0  # it does look


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    told = ",".join(f'{key}="{value}"' for key, value in {"job": "desk", **labels}.items())
    return {"series": f"{name}{{{told}}}", "values": values}


def rings(alert: str, at: str, inputs: Sequence[dict[str, str]], labels: dict[str, str] | None) -> dict[str, Any]:
    """A unit test of one alert: with these series it rings at that time with these labels, or (None) does not."""
    rules = {rule["alert"]: rule for rule in alert_rules()}
    expected = [] if labels is None else [{"exp_labels": {**labels, **rules[alert]["labels"]}}]
    return {
        "interval": "1m",
        "input_series": list(inputs),
        "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": expected}],
    }


ALARMS, RUNS = "uncertainty_alarms_total", "uncertainty_sessions_total"
FAILED, SENSED = "uncertainty_signal_failures_total", "uncertainty_sensing_duration_seconds_count"
DESK = {"job": "desk"}
# 0.7 a minute are 1008 runs in a day; at alpha 0.05 chance explains 50 + 3 * 6.9 = 71 alarms, 0.049 a minute.
CASES = {
    "alarms beyond alpha": [
        rings(
            "GrampusAlarmsBeyondAlpha",
            "30h",
            [series(ALARMS, "0+0.06x2000", mode="pac"), series(RUNS, "0+0.7x2000")],
            DESK,
        ),
        rings(
            "GrampusAlarmsBeyondAlpha",
            "30h",
            [series(ALARMS, "0+0.04x2000", mode="pac"), series(RUNS, "0+0.7x2000")],
            None,
        ),
        rings(  # three of ten runs are no evidence yet
            "GrampusAlarmsBeyondAlpha",
            "30h",
            [series(ALARMS, "0+0.002x2000", mode="pac"), series(RUNS, "0+0.007x2000")],
            None,
        ),
    ],
    "the first alarm of a process counts": [
        rings(  # 20 runs and 6 alarms within one scrape, after zero was shown
            "GrampusAlarmsBeyondAlpha",
            "2h",
            [series(ALARMS, "0x60 6x100", mode="ville"), series(RUNS, "0x60 24x100")],
            DESK,
        )
    ],
    "calibration watch": [
        rings(
            "GrampusCalibrationWatchCrossed",
            "30m",
            [series("uncertainty_calibration_watch", "0 1 5.4 1x100", variant="good_runs")],
            {**DESK, "variant": "good_runs"},
        ),
        rings(
            "GrampusCalibrationWatchCrossed",
            "30m",
            [series("uncertainty_calibration_watch", "0 1 5.2 1x100", variant="good_runs")],
            None,
        ),
    ],
    "signal failures": [
        rings(
            "GrampusSignalFails",
            "1h",
            [series(FAILED, "0+3x120", source="p_true", reason="timeout"), series(SENSED, "0+10x120")],
            {**DESK, "source": "p_true"},
        ),
        rings(
            "GrampusSignalFails",
            "1h",
            [series(FAILED, "0+1x120", source="p_true", reason="timeout"), series(SENSED, "0+10x120")],
            None,
        ),
        rings(  # a model that states nothing is no failure
            "GrampusSignalFails",
            "1h",
            [series(FAILED, "0+9x120", source="verbalized", reason="not_stated"), series(SENSED, "0+10x120")],
            None,
        ),
    ],
    "approvals": [
        rings("GrampusApprovalsWait", "40m", [series("uncertainty_approvals_pending", "1x100")], DESK),
        rings("GrampusApprovalsWait", "40m", [series("uncertainty_approvals_pending", "1x20 0x2 1x100")], None),
    ],
    "drops": [
        rings(
            "GrampusTelemetryDropped",
            "20m",
            [series("uncertainty_telemetry_dropped_total", "0x10 5x100", processor="Outbox")],
            {**DESK, "processor": "Outbox"},
        ),
        rings(
            "GrampusTelemetryDropped",
            "60m",
            [series("uncertainty_telemetry_dropped_total", "0x10 5x100", processor="Outbox")],
            None,
        ),
    ],
    "cost": [
        rings("GrampusMonitorCost", "2h", [series("uncertainty_monitor_cost_USD_total", "0+0.2x200")], DESK),
        rings("GrampusMonitorCost", "2h", [series("uncertainty_monitor_cost_USD_total", "0+0.15x200")], None),
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_an_alert_rings_when_it_should_and_only_then(tmp_path: Path, case: str) -> None:
    rules = alert_rules()
    for rule in rules:
        del rule["annotations"]  # promtool would compare every word; what they become is seen in the running Prometheus
    (tmp_path / "alerts.yml").write_text(json.dumps({"groups": [{"name": "grampus_uq", "rules": rules}]}))
    unit = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": CASES[case]}
    (tmp_path / "unit.yml").write_text(json.dumps(unit))
    done = promtool("test", "rules", "unit.yml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_rings() -> None:
    rung = {
        test["alert_rule_test"][0]["alertname"]
        for tests in CASES.values()
        for test in tests
        if test["alert_rule_test"][0]["exp_alerts"]
    }
    assert rung == {rule["alert"] for rule in alert_rules()}
