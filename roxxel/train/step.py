"""The training step: one jitted, donated program over a flat list of leaves.

`nnx.jit` walks the module graph on every call, which costs milliseconds for many small
blocks. Here the graph is taken apart once; each call passes arrays only.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from roxxel.train import accumulate as accumulation

Leaves = list[jax.Array]
# (model, tokens, loss mask or nothing) -> (mean loss, counted targets)
LossFn = Callable[..., tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainStep:
    """A compiled step and the way back from leaves to modules.

    Attributes:
      run: `(leaves, batch) -> (leaves, metrics)`; donates the leaves it is given.
      function, donated: what `run` is jitted from.
      metrics of `run`: scalars on the device. `loss` (mean over counted targets),
        `grad_norm` (before clipping), `learning_rate`, `tokens` (counted targets) and
        `finite`. Once a loss, gradient or update is not finite, that update and all
        after it leave the state as it was.
    """

    run: Callable[[Leaves, Any], tuple[Leaves, dict[str, jax.Array]]]
    treedef: Any
    function: Callable[[Leaves, Any], tuple[Leaves, dict[str, jax.Array]]]
    donated: tuple[int, ...]

    def compile(self, leaves: list[Any], batch: Any) -> Callable:
        """`run` compiled now, for arrays of these shapes, dtypes and shardings.

        Both may be `jax.ShapeDtypeStruct`s. The leaves that come out lie as those that
        go in.
        """
        shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
        on_mesh = all(isinstance(s, jax.sharding.NamedSharding) for s in shardings)
        jitted = jax.jit(
            self.function,
            donate_argnums=self.donated,
            out_shardings=(shardings if on_mesh else None, None),
        )
        return jitted.lower(leaves, batch).compile()

    def leaves(self, model: nnx.Module, optimizer: nnx.Optimizer) -> Leaves:
        """The state of both as a flat list, with the flag that keeps it finite last.

        Of modules that are only shapes (`sharding.abstract_on`), shapes.
        """
        leaves = jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
        return [*leaves, _alive(optimizer.step.get_value())]

    def write_back(
        self, leaves: Leaves, model: nnx.Module, optimizer: nnx.Optimizer
    ) -> None:
        """Puts the arrays of `leaves` into the modules; copies nothing."""
        states = jax.tree.unflatten(self.treedef, leaves[:-1])
        nnx.update(model, states[0])
        nnx.update(optimizer, states[1])


def _alive(counter: Any) -> Any:
    """True, where the counter lies: that was born on the mesh with the optimizer."""
    if isinstance(counter, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((), jnp.bool_, sharding=counter.sharding)
    return jnp.ones_like(counter, dtype=jnp.bool_)


def make_train_step(
    model: nnx.Module,
    optimizer: nnx.Optimizer,
    loss_fn: LossFn,
    *,
    schedule: optax.Schedule | None = None,
    accumulate: int = 1,
    donate: bool = True,
) -> TrainStep:
    """Builds the step for modules of this structure; compiles at the first call.

    Args:
      model: its `nnx.Param` state is differentiated.
      optimizer: made with `wrt=nnx.Param`.
      loss_fn: `(model, batch) -> (mean loss, number of counted targets)`.
      schedule: reported as `learning_rate`, at the optimizer's count.
      accumulate: micro-batches of a step, see `roxxel.train.accumulate`.
      donate: reuse the memory of the leaves passed in.
    """
    graphdefs = (nnx.graphdef(model), nnx.graphdef(optimizer))
    treedef = jax.tree.structure((nnx.state(model), nnx.state(optimizer)))

    def run(leaves, batch):
        *old, alive = leaves
        states = jax.tree.unflatten(treedef, old)
        loss, weight, grads, state = accumulation.gradients(
            loss_fn, graphdefs[0], states[0], batch, count=accumulate
        )
        model, optimizer = map(nnx.merge, graphdefs, (state, states[1]))
        grad_norm = optax.tree.norm(grads)
        metrics = {"loss": loss, "grad_norm": grad_norm, "tokens": weight}
        if schedule is not None:
            metrics["learning_rate"] = jnp.asarray(schedule(optimizer.step[...]))
        update_norm = optax.tree.norm(optimizer.update(model, grads))
        # The update too: an optimizer or schedule can fail on finite gradients.
        finite = alive & jnp.isfinite(loss + grad_norm + update_norm)
        metrics["finite"] = finite
        new = jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
        kept = [jnp.where(finite, n, o) for n, o in zip(new, old, strict=True)]
        return [*kept, finite], metrics

    donated = (0,) if donate else ()
    jitted = jax.jit(run, donate_argnums=donated)
    return TrainStep(run=jitted, treedef=treedef, function=run, donated=donated)
