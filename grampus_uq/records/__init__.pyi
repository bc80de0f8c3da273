from .events import DecisionEvent as DecisionEvent
from .events import OutcomeEvent as OutcomeEvent
from .events import SessionStarted as SessionStarted
from .events import StepEvent as StepEvent
from .protocols import ModelClient as ModelClient
from .values import Outcome as Outcome
