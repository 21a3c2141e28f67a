"""Text to token ids and back: bytes, Hugging Face, SentencePiece and tiktoken.

`load` finds a tokenizer by what names it; each package is imported only in the module
that needs it.
"""

from roxxel.tokenizers.loading import load as load
from roxxel.tokenizers.protocol import Tokenizer as Tokenizer
from roxxel.tokenizers.protocol import describe as describe

__all__ = ["Tokenizer", "describe", "load"]
