from .doctor import Examination as Examination
from .doctor import examine as examine
from .litellm_model import LiteLLMModel as LiteLLMModel
from .local_model import LocalModel as LocalModel
from .model_choice import open_model as open_model
from .openai_compatible import OpenAICompatibleModel as OpenAICompatibleModel
from .refusals import Capabilities as Capabilities
