from .monitor import UncertaintyMonitor as UncertaintyMonitor
from .reloading import watch_profile as watch_profile
