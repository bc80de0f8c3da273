"""The release rule: irreversible calls go ahead if the calibrated chance of success is high enough."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from grampus_uq.errors import ConfigurationError
from grampus_uq.stats.stored_values import FROZEN

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class ReleaseRule(BaseModel):
    """An irreversible call goes ahead where `p_success` is at least `at_least`; else it pauses, or aborts.

    `at_least` None releases nothing: no threshold could be certified, and `shortage` says what lacks. A chance below
    `abort_below` aborts instead of pausing. `mode` says where the threshold comes from: "certified", "wrong_releases"
    and "share" carry a `guarantee`, the sentence of what is promised of released (or paused) calls; "estimated",
    "costs" and "given" carry none. `target` is the wanted share of successes among the released, or the allowed share
    of wrong releases or of pauses; `delta` the allowed probability of an unlucky calibration (None: the promise is on
    average over calibrations); `runs` how many independent cases set it. No rule here bounds false alarms: that is a
    detector's promise.
    """

    model_config = FROZEN

    at_least: Probability | None
    abort_below: Probability | None = None
    mode: Literal["certified", "wrong_releases", "estimated", "share", "costs", "given"] = "given"
    target: Probability | None = None
    delta: Probability | None = None
    runs: int = Field(default=0, ge=0)
    guarantee: str | None = None
    shortage: str = ""

    @model_validator(mode="after")
    def _in_order(self) -> ReleaseRule:
        if self.abort_below is not None and self.at_least is not None and self.abort_below > self.at_least:
            rule = f"at most at_least ({self.at_least})"
            raise ConfigurationError.of("abort_below", "ReleaseRule", rule, self.abort_below)
        return self
