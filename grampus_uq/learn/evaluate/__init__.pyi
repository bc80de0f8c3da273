from .censoring import Censoring as Censoring
from .evaluation import Evaluation as Evaluation
from .evaluation import evaluate as evaluate
from .evaluation import read_recordings as read_recordings
from .forecast_runs import ForecastRuns as ForecastRuns
from .forecast_runs import StopRow as StopRow
