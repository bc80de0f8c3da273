"""The demo's clerk: mails with one right call, what a wrong one costs, and three ways of handling the same mails."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grampus_uq import Message, ModelResponse, ToolCall
from grampus_uq.cli import main
from grampus_uq.cli.demo.clerk import TOOLS, CallingModel, Handled
from grampus_uq.cli.demo.mail_plan import VARIANTS, MailPlan, handle_all, plan_mails, shipped_profile
from grampus_uq.cli.demo.mail_report import MailReport, report_lines, to_json
from grampus_uq.cli.demo.mails import CANCEL, REFUND, Mail, draw_mails, spoken
from grampus_uq.errors import ModelError
from grampus_uq.recording import runs
from grampus_uq.testing import ScriptedModel, answer, top_logprobs

seeds = st.integers(min_value=0, max_value=10_000)


def right_call(mail: Mail) -> ToolCall:
    amount = {"amount": f"{mail.amount:.2f}"} if mail.tool == REFUND else {}
    return ToolCall(name=mail.tool, arguments={"order": mail.order, **amount})


@given(seeds)
def test_the_right_call_of_a_mail_is_in_its_text_right_and_loses_nothing(seed: int) -> None:
    for mail in draw_mails(20, seed):
        call = right_call(mail)
        assert mail.order in mail.text
        assert f"{mail.amount:.2f}" in mail.text
        assert mail.is_right(call)
        assert mail.loses(call) == 0.0
        assert spoken(call) == mail.right_call
        assert not re.search(r"[{}]", mail.text)


@given(seeds, st.integers(min_value=1, max_value=30))
def test_a_seed_draws_the_same_mails_and_fewer_are_the_first_of_more(seed: int, n: int) -> None:
    assert draw_mails(n, seed) == draw_mails(n + 5, seed)[:n]
    assert draw_mails(5, seed) != draw_mails(5, seed + 1)


@given(seeds, st.integers(min_value=0, max_value=99_999))
def test_a_wrong_call_is_wrong_and_loses_what_it_moved_in_error(seed: int, cents: int) -> None:
    (mail,) = draw_mails(1, seed)
    paid = f"{cents / 100:.2f}"
    elsewhere = ToolCall(name=REFUND, arguments={"order": "Z0000", "amount": paid})
    assert not mail.is_right(elsewhere)
    assert mail.loses(elsewhere) == float(paid)
    here = ToolCall(name=REFUND, arguments={"order": mail.order, "amount": paid})
    due = mail.amount if mail.tool == REFUND else 0.0
    assert mail.loses(here) == pytest.approx(max(0.0, float(paid) - due))
    assert mail.loses(ToolCall(name=CANCEL, arguments={"order": "Z0000"})) == mail.amount


def clerk(sure: Mapping[str, float], wrong: Sequence[str] = ()) -> ScriptedModel:
    """A clerk that writes the right call, or cancels a wrong order; each token with the sureness of the mail."""
    known = {mail.text: mail for seed in range(4) for mail in draw_mails(8, seed)}

    def reply(messages: Sequence[Message], options: Mapping[str, Any]) -> ModelResponse:
        mail = known[messages[-1].content or ""]
        call = right_call(mail) if mail.id not in wrong else ToolCall(name=CANCEL, arguments={"order": "Z0000"})
        written = json.dumps({"tool": call.name, **call.arguments})
        p = sure[mail.id]
        pieces = re.findall(r"[A-Za-z]+|\d|[^A-Za-z\d]+", written)
        logprobs = [top_logprobs({piece: p, "~": (1.0 - p) * 0.9}, chosen=piece) for piece in pieces]
        return answer(written, logprobs=logprobs, usage=(200, len(pieces)))

    return ScriptedModel(reply)


def handled_by(model: Any, plan: MailPlan) -> MailReport:
    found: list[tuple[Handled, ...]] = []
    anyio.run(handle_all, plan, model, found.append)
    plan.recording.close()
    return MailReport(handled=found, seconds=1.0)


def doubtful_when_wrong(tmp_path: Path) -> tuple[MailReport, MailPlan, ScriptedModel]:
    """Eight mails, the clerk wrong and unsure on three of them."""
    plan = plan_mails(n=8, seed=1, runs_folder=str(tmp_path))
    wrong = [mail.id for mail in plan.mails[:3]]
    model = clerk({mail.id: 0.6 if mail.id in wrong else 0.9999 for mail in plan.mails}, wrong)
    return handled_by(model, plan), plan, model


def test_the_shipped_profile_acts_on_this_clerk_and_holds_what_it_is_unsure_of(tmp_path: Path) -> None:
    report, plan, model = doubtful_when_wrong(tmp_path)
    unguarded, _, guarded = report.tallies
    assert unguarded.went_out == 8
    assert unguarded.lost == pytest.approx(sum(mail.amount for mail in plan.mails[:3]))
    assert (guarded.went_out, guarded.right, guarded.lost) == (5, 5, 0.0)
    assert len(model.calls) == 8, "each mail is asked of the model once, however often it is handled"
    rules = {ends[-1].verdict.rule for ends in report.handled if ends[-1].verdict}
    assert rules <= {"release", "tier"}, f"the profile did not act: {rules}"
    recorded = {run.session_id: run.outcome for run in runs(plan.folder)}
    assert len(recorded) == 8
    assert sum(bool(outcome and outcome.success) for outcome in recorded.values()) == 5


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_report_fits_the_terminal_and_marks_the_doubtful_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    report, plan, _ = doubtful_when_wrong(tmp_path)
    lines = list(report_lines(report, plan))
    assert all(len(line.replace(str(tmp_path), "runs")) <= min(columns, 100) for line in lines)
    assert all(len(line) <= 100 for line in report_lines(report, plan, details=True) if str(plan.folder) not in line)
    text = "\n".join(lines)
    assert "8 emails, 8 proposed calls, 5 of them right (seed 1, 1 s)" in text
    place = next(number for number, line in enumerate(lines) if "^" in line)
    marked = lines[place - 1][lines[place].index("^") : lines[place].rindex("^") + 1]
    assert marked == "Z0000", "the value whose tokens are the least probable"
    assert re.search(r"held +.*chance of success 0\.\d\d, below 0\.\d\d", text)
    assert f"{sum(plan.artifact.provenance.counts[k] for k in ('success', 'failure'))} other emails" in text
    most = max(ends[-1].mail.amount for ends in report.handled[:3])
    assert report.shown is not None
    assert report.shown.mail.amount == most


def test_the_commands_that_the_report_ends_with_show_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, plan, _ = doubtful_when_wrong(tmp_path)
    monkeypatch.chdir(tmp_path)
    told = [line.split("grampus-uq ", 1)[1].split() for line in report_lines(report, plan) if "grampus-uq runs" in line]
    assert [words[1] for words in told] == ["list", "show"]
    for words in told:
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0, capsys.readouterr().err
    assert report.shown is not None
    assert report.shown.mail.text.split(",")[0] in (tmp_path / "run.html").read_text()


def test_twice_with_one_seed_gives_the_same_apart_from_times(tmp_path: Path) -> None:
    reports = [doubtful_when_wrong(tmp_path / name) for name in "ab"]
    one, other = (to_json(report, plan) | {"recording": "", "seconds": 0} for report, plan, _ in reports)
    assert one == other
    assert [row["variant"] for row in one["variants"]] == list(VARIANTS)


def test_the_shipped_profile_is_fitted_on_other_mails_and_names_no_file() -> None:
    artifact = shipped_profile()
    assert artifact.provenance.inputs == ()
    assert artifact.provenance.counts["success"] + artifact.provenance.counts["failure"] == 360
    assert artifact.profile.release is not None
    shown = {mail.text for seed in range(10) for mail in draw_mails(30, seed)}
    assert shown.isdisjoint(mail.text for mail in draw_mails(360, 2_000))


def test_an_answer_that_is_no_call_is_an_error_and_no_harm() -> None:
    async def ask() -> None:
        await CallingModel(ScriptedModel("Sure, I refund it!")).complete(messages=[], tools=TOOLS, temperature=0.0)

    with pytest.raises(ModelError, match="wrote no call"):
        anyio.run(ask)


@pytest.mark.parametrize("arguments", [["--parallel", "2"], ["--advisory"], ["--model", "gpt-4o-mini"]])
def test_an_option_of_the_questions_is_refused_by_name(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", *arguments, "--runs-folder", str(tmp_path / "runs")])
    assert end.value.code == 2
    assert f"{arguments[0]} belongs to --task questions." in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_details_of_the_questions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", "--task", "questions", "--details"])
    assert end.value.code == 2
    assert "--details and --inbox belong to --task mails" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_embedded_clerk_proposes_calls_some_of_them_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'demo'")
    with pytest.raises(SystemExit) as end:
        main(["demo", "--n", "8", "--seed", "3000", "--runs-folder", str(tmp_path), "--json"])
    assert end.value.code == 0
    value = json.loads(capsys.readouterr().out)
    assert value["handled"] == 8
    assert 0 < value["proposed_right"] < 8
    unguarded, _, guarded = value["variants"]
    assert unguarded["went_out"] == 8
    assert guarded["went_out"] < 8
    assert guarded["money_lost"] < unguarded["money_lost"]
