from .held_calls import HeldCalls as HeldCalls
from .judged_turns import TurnJudge as TurnJudge
from .model_turn import ModelTurn as ModelTurn
from .settings import AdapterSettings as AdapterSettings
