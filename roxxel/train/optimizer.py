"""The optimizer, and what a run keeps beside its state: all saved with it.

    master  float32 weights of a model stored in bfloat16  `roxxel.train.precision`
    ema     running mean of the weights, float32           `roxxel.train.ema`
    guard   what the decision about a step remembers       `roxxel.train.divergence`

All are absent where nobody asked for them, so a plain run's checkpoints do not change.
"""

import contextlib
from collections.abc import Generator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.nnx.training import optimizer as nnx_optimizer

from roxxel.train import ema as ema_lib
from roxxel.train.divergence import Divergence
from roxxel.train.precision import Precision

# Arrays that a checkpoint may lack, or have although nobody asks for them now.
OPTIONAL = ("optimizer/ema/", "optimizer/guard/")

_KEY_TEXTS = ("key", "idx", "name")


class RunOptimizer(nnx.Optimizer):
    """`nnx.Optimizer` over `nnx.Param` with a mean of the weights and a guard.

    Args:
      model: whose parameters it updates.
      tx: the Optax transformation.
      ema_decay: of the mean of the weights; None: no mean.
      divergence: what its guard is for.
      precision: in which types the model is stored from here on; it is given in
        float32.
    """

    def __init__(
        self,
        model: nnx.Module,
        tx: optax.GradientTransformation,
        *,
        ema_decay: float | None = None,
        divergence: Divergence | None = None,
        precision: Precision | None = None,
    ):
        super().__init__(model, tx, wrt=nnx.Param)
        self.ema_decay, self.precision = ema_decay, precision or Precision()
        params = nnx.state(model, nnx.Param)
        if ema_decay is not None:
            self.ema = nnx.data(_variables(ema_lib.start(params)))
        if self.precision.has_master:
            self.master = nnx.data(_variables(params))
            nnx.update(model, self.precision.stored(nnx.as_pure(params)))
        if divergence is not None and divergence.has_guard:
            self.guard = nnx.data(_variables(divergence.guard()))

    def weights(self, model: nnx.Module) -> Any:
        """The weights that updates go to: the float32 copy, or else the model's own."""
        is_copy = self.precision.has_master
        return nnx.as_pure(
            nnx.state(self.master) if is_copy else nnx.state(model, nnx.Param)
        )

    @contextlib.contextmanager
    def whole_weights(self, model: nnx.Module) -> Generator[None]:
        """Meanwhile the model has its float32 weights, which may be replaced.

        Afterwards it has them as it stores them, and the copy here follows.
        """
        if not self.precision.has_master:
            yield
            return
        nnx.update(model, nnx.as_pure(nnx.state(self.master)))
        yield
        params = nnx.as_pure(nnx.state(model, nnx.Param))
        where = jax.tree.map(lambda leaf: leaf.sharding, params)
        # Copies: no array of the model may be one of the optimizer's, both are donated.
        copied = lambda leaves: jax.tree.map(jnp.copy, leaves)  # noqa: E731
        nnx.update(self.master, jax.jit(copied, out_shardings=where)(params))
        nnx.update(model, self.precision.stored(params))

    def update(self, model: nnx.Module, grads: Any, /, **options) -> optax.Updates:
        """As `nnx.Optimizer.update`; the mean of the weights follows."""
        if self.precision.has_master:
            updates = self._update_master(model, grads, **options)
        else:
            updates = super().update(model, grads, **options)
        if self.ema_decay is not None:
            params = self.weights(model)
            mean = nnx.as_pure(nnx.state(self.ema))
            mean = ema_lib.step(mean, params, self.ema_decay, self.step[...])
            nnx.update(self.ema, mean)
        return updates

    def _update_master(self, model, grads, **options):
        """Updates the float32 weights; the model gets them rounded."""
        params = nnx.as_pure(nnx.state(self.master))
        grads = nnx.as_pure(nnx.state(grads, nnx.Param))
        grads = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), grads)
        updates, new_state = self.tx.update(
            grads, nnx.as_pure(self.opt_state), params, **options
        )
        params = optax.apply_updates(params, updates)
        nnx.update(self.master, params)
        nnx.update(model, self.precision.stored(params))
        nnx.update(self.opt_state, nnx.state(new_state))
        self.step[...] += 1
        return updates


def _variables(tree: Any) -> Any:
    """As variables of an optimizer; those of parameters lie on a mesh as they do."""
    return nnx_optimizer.to_opt_state(tree)


def means_of(model: nnx.Module, optimizer: nnx.Optimizer) -> dict[int, int]:
    """Leaves of `(model, optimizer)` in order: that of a weight to that of its mean."""
    own, theirs = (
        [_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(nnx.state(m))]
        for m in (model, optimizer)
    )
    return {
        own.index(name.removeprefix("ema/")): len(own) + index
        for index, name in enumerate(theirs)
        if name.startswith("ema/")
    }


Kept = Literal["updates", "data", "always"]


def when_new(optimizer: nnx.Optimizer) -> list[Kept]:
    """For each leaf of the optimizer's state what it follows.

    "updates" stays where an update is left out, as moments do, and the counts that
    correct their bias. "data" goes on even then: the optimizer's own `step` and the
    counts that schedules look up. "always" is the guard, which decides by itself.
    """
    nodes, _ = jax.tree_util.tree_flatten_with_path(
        optimizer.opt_state, is_leaf=_is_schedule
    )
    counts = {f"opt_state/{_name(p)}/count" for p, node in nodes if _is_schedule(node)}
    counts.add("step")

    def kind(name: str) -> Kept:
        if name.startswith("guard/"):
            return "always"
        return "data" if name in counts else "updates"

    flat, _ = jax.tree_util.tree_flatten_with_path(nnx.state(optimizer))
    return [kind(_name(path)) for path, _ in flat]


def _is_schedule(node: Any) -> bool:
    """Whether an Optax state is that of a schedule, or has one of hyperparameters."""
    fields = getattr(node, "_fields", ())
    return fields == ("count",) or fields[:2] == ("count", "hyperparams")


def _name(path: tuple) -> str:
    """The path of a leaf or node as text, without the variable's own level."""
    parts = [
        str(next((getattr(key, a) for a in _KEY_TEXTS if hasattr(key, a)), key))
        for key in path
    ]
    return "/".join(part for part in parts if part != "value")
