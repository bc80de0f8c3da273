from .embedding import HashingEmbedder as HashingEmbedder
from .equivalence import EntailmentEquivalence as EntailmentEquivalence
from .equivalence import LexicalEquivalence as LexicalEquivalence
from .equivalence import SameWording as SameWording
from .minilm import MiniLM as MiniLM
from .prefix_verifier import PrefixVerifier as PrefixVerifier
from .stated_confidence import parse_confidence as parse_confidence
from .structure import counted as counted
