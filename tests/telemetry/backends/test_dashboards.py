"""The dashboard and the alerts: they ask for metrics and labels that exist, and the files of the stack fit together."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from grampus_uq.cli import main
from grampus_uq.errors import ConfigurationError
from grampus_uq.records.vocabulary import NOT_DUE, MissingReason
from grampus_uq.stats.calibration_watch import Variant, start_watching
from grampus_uq.telemetry.dashboards import stack_files, write_stack
from grampus_uq.telemetry.instruments import INSTRUMENTS
from tests.telemetry.backends.shown import alert_rules, panels, prometheus_name

WATCH_LIMIT = -math.log(inspect.signature(start_watching).parameters["level"].default / len(Variant))
yaml: Any = importlib.import_module("yaml")  # it comes without types


def test_no_placeholder_is_left_and_the_limits_are_numbers() -> None:
    for name, text in stack_files().items():
        assert not re.search(r"@\w+@", text), name
    drawn = [step["value"] for panel in panels() for step in _steps(panel)]
    assert {0.05, round(WATCH_LIMIT, 3)} < set(drawn)


def _steps(panel: dict[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = panel["fieldConfig"]["defaults"].get("thresholds", {"steps": []})["steps"]
    return steps


def test_the_dashboard_is_the_same_after_grafanas_own_sdk_has_read_and_written_it() -> None:
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()  # then queries and options are read by their own types, not kept as they are
    shipped = json.loads(stack_files()["grafana/dashboards/grampus-uq.json"])
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(shipped)))
    assert again == shipped
    misspelt = json.loads(json.dumps(shipped).replace('"fieldConfig"', '"fieldconfig"'))
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(misspelt))) != misspelt  # the SDK does notice


def shown_expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def expressions() -> list[str]:
    return shown_expressions() + [rule["expr"] for rule in alert_rules()]


def test_every_instrument_is_shown_and_every_metric_that_is_asked_for_is_an_instruments() -> None:
    asked = set(re.findall(r"uncertainty_[A-Za-z_]+", " ".join(shown_expressions())))
    stems = {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked}
    assert stems == {prometheus_name(name) for name in INSTRUMENTS}
    alerts = set(re.findall(r"uncertainty_[A-Za-z_]+", " ".join(expressions())))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in alerts} == stems


def test_no_gauge_has_a_name_that_the_collector_makes_otherwise() -> None:
    """The translation that collector and Prometheus share appends "_ratio" to a gauge of unit "1", ours does not."""
    gauges = [found for found in INSTRUMENTS.values() if "gauge" in found.kind]
    assert gauges
    assert all(found.unit != "1" for found in gauges)


def test_every_label_that_is_asked_for_is_one_of_its_instrument() -> None:
    known = {"job", "agent_id", "le"} | {label for found in INSTRUMENTS.values() for label in found.labels}
    grouped = " ".join(re.findall(r"(?:by|on) \(([^)]*)\)", " ".join(expressions())))
    matched = re.findall(r"(\w+)=~", " ".join(expressions()))
    assert set(re.findall(r"\w+", grouped)) | set(matched) <= known


def test_panels_do_not_overlap_and_each_says_what_it_tells() -> None:
    covered: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & covered
        assert max(x for x, _ in cells) < 24
        covered |= cells
        assert len(panel["description"]) > 20
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert len({panel["title"] for panel in panels()}) == len(panels())


def test_the_page_tells_of_every_panel_and_every_alert_and_of_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "dashboards.md").read_text()
    shown, _, alerts = page.partition("## What each panel tells")[2].partition("## Alerts")
    told = re.findall(r"^\| ([^|]+?) \|", shown, re.MULTILINE)
    assert [one for one in told if one != "panel"] == [panel["title"] for panel in panels()]
    rung = re.findall(r"^\| `(\w+)` \|", alerts, re.MULTILINE)
    assert rung == [rule["alert"] for rule in alert_rules()]


def test_alpha_reaches_the_alerts_and_the_lines() -> None:
    files = stack_files(alpha=0.2)
    rules = {rule["alert"]: rule for rule in yaml.safe_load(files["alerts.yml"])["groups"][0]["rules"]}
    assert "> 0.2 * " in rules["GrampusAlarmsBeyondAlpha"]["expr"]
    assert "sqrt(1.44 * " in rules["GrampusAlarmsBeyondAlpha"]["expr"]
    assert rules["GrampusCalibrationWatchCrossed"]["expr"].endswith(f">= {WATCH_LIMIT:.6g}")
    shown = {panel["title"]: panel for panel in json.loads(files["grafana/dashboards/grampus-uq.json"])["panels"]}
    steps = [
        shown[title]["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"]
        for title in ("Alarms per run", "Calibration watch")
    ]
    assert steps == [0.2, round(WATCH_LIMIT, 3)]


def test_every_failure_that_holds_an_irreversible_call_is_alerted() -> None:
    """But for what a budget, a cap or the text itself keeps from being read."""
    (rule,) = [rule for rule in alert_rules() if rule["alert"] == "GrampusSignalFails"]
    alerted = set(re.findall(r'reason=~"([^"]*)"', rule["expr"])[0].split("|"))
    bounds = {"budget_exceeded", "overhead_cap", "too_long", "too_few_samples"}
    assert alerted == set(MissingReason) - NOT_DUE - bounds - {"nothing_to_judge", "not_sensed", "profile_changed"}


def test_an_alpha_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'alpha' parameter of `stack_files` must be in \(0, 1\). Got 5.0"):
        stack_files(alpha=5.0)


# -- the files of the stack --


def test_the_compose_file_names_pinned_images_mounts_what_is_written_and_listens_on_loopback_only() -> None:
    files = stack_files()
    compose = yaml.safe_load(files["docker-compose.yml"])
    for name, service in compose["services"].items():
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert any(path == source[2:] or path.startswith(f"{source[2:]}/") for path in files), source
            else:
                assert source in compose["volumes"]


def test_the_collector_sends_spans_to_jaeger_and_holds_metrics_where_prometheus_scrapes() -> None:
    files = stack_files()
    collector = yaml.safe_load(files["otel-collector.yml"])
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(collector[kind])
    (scrape,) = yaml.safe_load(files["prometheus.yml"])["scrape_configs"]
    port = collector["exporters"]["prometheus"]["endpoint"].rpartition(":")[2]
    assert scrape["static_configs"] == [{"targets": [f"collector:{port}"]}]
    assert scrape["honor_labels"] is True
    services = yaml.safe_load(files["docker-compose.yml"])["services"]
    targets = [collector["exporters"]["otlp/jaeger"]["endpoint"].partition(":")[0], scrape["job_name"]]
    assert set(targets) <= set(services)
    published = {int(port.rpartition(":")[2]) for port in services["collector"]["ports"]}
    received = collector["receivers"]["otlp"]["protocols"].values()
    assert published == {int(found["endpoint"].rpartition(":")[2]) for found in received}


def test_grafana_is_given_both_sources_and_the_folder_of_the_dashboard() -> None:
    files = stack_files()
    sources = yaml.safe_load(files["grafana/provisioning/datasources/grampus-uq.yml"])["datasources"]
    services = yaml.safe_load(files["docker-compose.yml"])["services"]
    for source in sources:
        host, port = source["url"].removeprefix("http://").split(":")
        assert f"127.0.0.1:{port}:{port}" in services[host]["ports"]
    assert [source["type"] for source in sources if source["isDefault"]] == ["prometheus"]
    (provider,) = yaml.safe_load(files["grafana/provisioning/dashboards/grampus-uq.yml"])["providers"]
    assert any(volume.split(":")[1] == provider["options"]["path"] for volume in services["grafana"]["volumes"])


# -- the command --


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(["dashboard", *arguments])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return code, *capsys.readouterr()


def test_the_command_writes_every_file_and_again_without_a_word_but_keeps_what_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "stack"
    code, out, _ = run(capsys, "-o", str(folder), "--alpha", "0.1", "--json")
    assert code == 0
    assert {str(Path(path).relative_to(folder)) for path in json.loads(out)["written"]} == set(stack_files())
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == set(stack_files())
    assert run(capsys, "-o", str(folder), "--alpha", "0.1")[0] == 0
    mine = folder / "alerts.yml"
    mine.write_text("groups: []\n")
    (folder / "README.md").unlink()
    code, _, err = run(capsys, "-o", str(folder), "--alpha", "0.1")
    assert code == 2
    assert str(mine) in err
    assert not (folder / "README.md").exists()  # nothing was written
    assert run(capsys, "-o", str(folder), "--alpha", "0.1", "--force")[0] == 0
    assert "> 0.1 * " in mine.read_text()


def test_a_folder_that_cannot_be_written_and_a_wrong_limit_are_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "-o", str(tmp_path / "file" / "below"))
    assert (code, err.count("\n")) == (1, 1)
    assert "cannot be written" in err
    code, _, err = run(capsys, "-o", str(tmp_path), "--alpha", "5")
    assert code == 2
    assert "Invalid value for '--alpha': 5.0" in err
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_files_are_replaced_only_when_asked(tmp_path: Path) -> None:
    write_stack(tmp_path)
    with pytest.raises(ConfigurationError, match="--force"):
        write_stack(tmp_path, 0.01)
    write_stack(tmp_path, 0.01, replace=True)
    assert "> 0.01 * " in (tmp_path / "alerts.yml").read_text()
