"""Whole profiles: fit everything that labels allow in one go, say what to expect, compare two on the same runs."""

from grampus_uq.learn.profiles.expected import Counterfactual, counterfactual, rates
from grampus_uq.learn.profiles.fitting import ProfileFit, fit_profile
from grampus_uq.learn.profiles.options import FitOptions
from grampus_uq.learn.profiles.profile_parts import Part

__all__ = ["Counterfactual", "FitOptions", "Part", "ProfileFit", "counterfactual", "fit_profile", "rates"]
