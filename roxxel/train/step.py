"""The training step: one jitted, donated program over a flat list of leaves.

`nnx.jit` walks the module graph on every call, which costs milliseconds for many small
blocks. Here the graph is taken apart once; each call passes arrays only.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from roxxel.train import accumulate as accumulation
from roxxel.train.divergence import Divergence, judge
from roxxel.train.optimizer import means_of, when_new
from roxxel.train.precision import Precision, mesh_to_reduce_over

Leaves = list[jax.Array]
# (model, tokens, loss mask or nothing) -> (mean loss, counted targets)
LossFn = Callable[..., tuple[jax.Array, jax.Array]]
# Of a batch: nothing, some of its rows, or the update of all of it.
LeftOut = tuple[int, ...] | Literal["all"] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainStep:
    """A compiled step and the way back from leaves to modules.

    Attributes:
      run: `(leaves, batch) -> (leaves, metrics)`; donates the leaves it is given.
      function, donated: what `run` is jitted from; `function` also takes `left_out`.
      model_leaves: number of the model's leaves, which come first.
      means: of a weight's leaf, the leaf with its running mean.
      metrics of `run`: scalars on the device. `loss` (mean over counted targets),
        `grad_norm` (before clipping), `weight_norm` (of all parameters, before the
        update), `update_norm`, `learning_rate`, `tokens` (counted targets), `finite`
        (nothing was wrong with the step) and `alive`: once false, this update and all
        after it leave the state as it was. Without a counted target nothing but counts
        moves.
    """

    run: Callable[[Leaves, Any], tuple[Leaves, dict[str, jax.Array]]]
    treedef: Any
    function: Callable[..., tuple[Leaves, dict[str, jax.Array]]]
    donated: tuple[int, ...]
    model_leaves: int
    means: dict[int, int]

    def compile(
        self,
        leaves: list[Any],
        batch: Any,
        left_out: LeftOut = None,
        compiler_options: dict[str, Any] | None = None,
    ) -> Callable:
        """`run` compiled now, for arrays of these shapes, dtypes and shardings.

        Both may be `jax.ShapeDtypeStruct`s. The leaves that come out lie as those that
        go in. `compiler_options` are XLA's, by name.
        """
        shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
        on_mesh = all(isinstance(s, jax.sharding.NamedSharding) for s in shardings)
        jitted = jax.jit(
            functools.partial(self.function, left_out=left_out),
            donate_argnums=self.donated,
            out_shardings=(shardings if on_mesh else None, None),
        )
        return jitted.lower(leaves, batch).compile(compiler_options)

    def function_without(self, left_out: LeftOut) -> Callable:
        """`run` without some rows of the batch, compiled when it is called."""
        if left_out is None:
            return self.run
        without = functools.partial(self.function, left_out=left_out)
        return jax.jit(without, donate_argnums=self.donated)

    def leaves(self, model: nnx.Module, optimizer: nnx.Optimizer) -> Leaves:
        """The state of both as a flat list, with the flag that keeps it finite last.

        Of modules that are only shapes (`sharding.abstract_on`), shapes.
        """
        leaves = jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
        return [*leaves, _alive(optimizer.step.get_value())]

    def evaluated(self, leaves: Leaves) -> Leaves:
        """The model's leaves, the weights replaced by their mean if there is one."""
        new = leaves[: self.model_leaves]
        for index, mean in self.means.items():
            new[index] = leaves[mean]
        return new

    def write_means(self, leaves: Leaves, model: nnx.Module) -> None:
        """Puts the running mean of the weights, if there is one, into the model."""
        old = jax.tree.leaves(nnx.state(model))
        new = [
            mean.astype(like.dtype)
            for mean, like in zip(self.evaluated(leaves), old, strict=True)
        ]
        nnx.update(model, jax.tree.unflatten(jax.tree.structure(nnx.state(model)), new))

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
    divergence: Divergence | None = None,
    precision: Precision | None = None,
    donate: bool = True,
) -> TrainStep:
    """Builds the step for modules of this structure; compiles at the first call.

    Args:
      model: its `nnx.Param` state is differentiated.
      optimizer: made with `wrt=nnx.Param`.
      loss_fn: `(model, batch) -> (mean loss, number of counted targets)`.
      schedule: reported as `learning_rate`, at the optimizer's count.
      accumulate: micro-batches of a step, see `roxxel.train.accumulate`.
      divergence: what is refused, and what then; None: stop at what is not finite. Its
        guard is in the optimizer, see `roxxel.train.optimizer`.
      precision: types of gradients and of their reduction; those of the weights are
        the modules' own.
      donate: reuse the memory of the leaves passed in.
    """
    graphdefs = (nnx.graphdef(model), nnx.graphdef(optimizer))
    states = (nnx.state(model), nnx.state(optimizer))
    treedef = jax.tree.structure(states)
    follows = ["updates"] * len(jax.tree.leaves(states[0])) + when_new(optimizer)
    rule, types = divergence or Divergence(), precision or Precision()
    mesh = mesh_to_reduce_over(types, optimizer)
    gradients = accumulation.gradients
    if mesh is not None:
        gradients = functools.partial(
            accumulation.reduced_gradients, mesh, types.reductions
        )

    def run(leaves, batch, *, left_out: LeftOut = None):
        *old, alive = leaves
        states = jax.tree.unflatten(treedef, old)
        loss, weight, grads, state = gradients(
            *_without(loss_fn, batch, left_out),
            graphdefs[0],
            states[0],
            count=accumulate,
            dtype=types.gradients,
        )
        model, optimizer = map(nnx.merge, graphdefs, (state, states[1]))
        grad_norm = optax.tree.norm(grads)
        metrics = {"loss": loss, "grad_norm": grad_norm, "tokens": weight}
        metrics["weight_norm"] = optax.tree.norm(nnx.state(model, nnx.Param))
        if schedule is not None:
            metrics["learning_rate"] = jnp.asarray(schedule(optimizer.step[...]))
        update_norm = optax.tree.norm(optimizer.update(model, grads))
        guard = getattr(optimizer, "guard", {})
        verdict = judge(
            rule,
            {name: variable[...] for name, variable in guard.items()},
            loss=loss,
            grad_norm=grad_norm,
            update_norm=update_norm,
            alive=alive,
            counted=weight > 0,
            refuse=left_out == "all",
        )
        for name, value in verdict.guard.items():
            guard[name][...] = value
        new = jax.tree.leaves((nnx.state(model), nnx.state(optimizer)))
        # Where nothing counts there is nothing to learn: momentum must not move either.
        is_taken = {"updates": verdict.good & (weight > 0), "data": verdict.alive}
        kept = [
            n if what == "always" else jnp.where(is_taken[what], n, o)
            for what, n, o in zip(follows, new, old, strict=True)
        ]
        metrics |= {
            "update_norm": update_norm,
            "finite": verdict.good,
            "alive": verdict.alive,
        }
        return [*kept, verdict.alive], metrics

    donated = (0,) if donate else ()
    jitted = jax.jit(run, donate_argnums=donated)
    return TrainStep(
        run=jitted,
        treedef=treedef,
        function=run,
        donated=donated,
        model_leaves=len(jax.tree.leaves(states[0])),
        means=means_of(model, optimizer),
    )


def _without(
    loss_fn: LossFn, batch: Any, left_out: LeftOut
) -> tuple[Callable[..., Any], Any]:
    """Loss and batch without some rows, whose places copies of another row fill.

    The copies have no weight; the rows themselves could make gradients not finite
    even so.
    """
    if left_out is None or left_out == "all":
        return loss_fn, batch
    is_out = np.isin(np.arange(batch.shape[0]), left_out)
    filled = np.where(is_out, np.argmin(is_out), np.arange(batch.shape[0]))
    weights = np.broadcast_to(~is_out[:, None], batch.shape).astype(np.float32)
    rows = {"tokens": batch[filled], "mask": jnp.asarray(weights)}
    return lambda model, rows: loss_fn(model, rows["tokens"], rows["mask"]), rows
