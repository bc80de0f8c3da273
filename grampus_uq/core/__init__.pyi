from .policy import UncertaintyPolicy as UncertaintyPolicy
from .state import Profile as Profile
