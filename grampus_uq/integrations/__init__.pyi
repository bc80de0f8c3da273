from .call_records import waiting_in as waiting_in
from .carried_calls import take_up as take_up
from .carried_calls import write_snapshot as write_snapshot
from .held_calls import HeldCalls as HeldCalls
from .judged_turns import TurnJudge as TurnJudge
from .model_turn import ModelTurn as ModelTurn
from .settings import AdapterSettings as AdapterSettings
