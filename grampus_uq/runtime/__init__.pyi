from .guarantee_watch import CalibrationWatch as CalibrationWatch
from .guarantee_watch import finished_run as finished_run
from .ledger import Ledger as Ledger
from .pending_approvals import pending_approvals as pending_approvals
from .rollback import branches as branches
from .rollback import rollback as rollback
from .stores.conformance import check_session_store as check_session_store
from .stores.memory import MemoryStore as MemoryStore
