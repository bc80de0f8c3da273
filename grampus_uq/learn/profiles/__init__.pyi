from .expected import Counterfactual as Counterfactual
from .expected import counterfactual as counterfactual
from .expected import rates as rates
from .fitting import ProfileFit as ProfileFit
from .fitting import fit_profile as fit_profile
from .options import FitOptions as FitOptions
from .profile_parts import Part as Part
