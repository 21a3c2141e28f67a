"""Models from and for other libraries: Hugging Face checkpoints.

from roxxel import exchange

model = exchange.load_hf("folder")
exchange.export_hf(model, "another")
"""

from roxxel import extras

try:
    import flax as flax
    import jax as jax
except ImportError as err:
    raise extras.missing("roxxel.exchange", "checkpoint", err) from err

from roxxel.exchange.huggingface import export_hf as export_hf
from roxxel.exchange.huggingface import load_hf as load_hf
from roxxel.exchange.huggingface import model_of as model_of

__all__ = ["export_hf", "load_hf", "model_of"]
