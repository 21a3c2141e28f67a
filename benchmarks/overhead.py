"""What the framework adds to a training step; each beside its bare limit in one run.

    python benchmarks/overhead.py host      # one call of the step, 32 tiny blocks
    python benchmarks/overhead.py logging   # metrics of a step, of 5 ms
    python benchmarks/overhead.py trainer   # the whole trainer beside a bare loop

`host`: microseconds a call of roxxel's step, of a bare `jax.jit` over the same leaves,
and of `nnx.jit`, for a model so small that the calls are nearly all there is.
`logging`: steps of about 5 ms of one matrix product, alone and with all that a run does
for the metrics of a step (clock, numbers, logger with table and text), in percent; and
what that takes of a processor, which other work on the machine does not change: in the
thread that trains, and in the logger's own.
`trainer`: steps a second of `Trainer.run` on the model of `ssm_small` (stream, logger,
progress, metrics, no
evaluation, no checkpoint) beside a loop that only calls the compiled step on batches
made before. Medians of interleaved rounds.
"""

import argparse
import functools
import pathlib
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from roxxel import Logger, Roxxel, optim, sharding
from roxxel.data.steps import Span
from roxxel.models.losses import next_token_loss
from roxxel.models.ssm import Mamba2LM
from roxxel.train.numbers import Numbers
from roxxel.train.step import make_train_step
from roxxel.train.timing import StepClock
from roxxel.train.trainer import Trainer

SPANS = (Span(start=0, stop=None, batch_size=4, seq_len=128),)
SCHEDULE = optax.constant_schedule(1e-3)


class Blocks(nnx.Module):
    """32 residual blocks of two 8 x 8 matrices: all overhead, no work."""

    def __init__(self, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(16, 8, rngs=rngs)
        self.blocks = nnx.List(
            nnx.Sequential(nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs))
            for _ in range(32)
        )

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.embed.attend(x), None


def make(model_class):
    def create():
        model = model_class(rngs=nnx.Rngs(0))
        tx = optim.adamw(schedule=SCHEDULE)
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    return sharding.create_on(None, create)


def roxxel_step(batch):
    model, optimizer = make(Blocks)
    step = make_train_step(model, optimizer, next_token_loss, schedule=SCHEDULE)
    leaves = step.leaves(model, optimizer)
    while True:
        leaves, metrics = step.run(leaves, batch)
        yield metrics["loss"]


def bare_step(batch):
    """The same update written by hand over the leaves, and nothing else."""
    modules = make(Blocks)
    graphdef, state = nnx.split(modules)
    leaves, treedef = jax.tree.flatten(state)

    @functools.partial(jax.jit, donate_argnums=0)
    def run(leaves, batch):
        model, optimizer = nnx.merge(graphdef, jax.tree.unflatten(treedef, leaves))
        loss, grads = nnx.value_and_grad(lambda m: next_token_loss(m, batch)[0])(model)
        optimizer.update(model, grads)
        return jax.tree.leaves(nnx.state((model, optimizer))), loss

    while True:
        leaves, loss = run(leaves, batch)
        yield loss


def nnx_step(batch):
    model, optimizer = make(Blocks)

    @nnx.jit
    def run(model, optimizer, batch):
        loss, grads = nnx.value_and_grad(lambda m: next_token_loss(m, batch)[0])(model)
        optimizer.update(model, grads)
        return loss

    while True:
        yield run(model, optimizer, batch)


def host(rounds=15, calls=30):
    batch = jnp.zeros((1, 5), jnp.int32)
    steps = {
        "roxxel": roxxel_step(batch),
        "bare jax.jit": bare_step(batch),
        "nnx.jit": nnx_step(batch),
    }
    for step in steps.values():
        next(step).block_until_ready()
    seconds = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(calls):
                loss = next(step)
            loss.block_until_ready()
            seconds[name].append((time.perf_counter() - start) / calls)
    bare = statistics.median(seconds["bare jax.jit"])
    print("host time of a step, 32 tiny blocks")
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"  {name:14s} {median * 1e6:8.0f} us  {median / bare:5.2f} x bare")


class Timed:
    """A stream that notes when each batch is taken."""

    def __init__(self, stream, times):
        self._stream, self._times = stream, times

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def place(self, *args, **kwargs):
        return Timed(self._stream.place(*args, **kwargs), self._times)

    def steps(self, start, stop):
        for batch in self._stream.steps(start, stop):
            self._times.append(time.perf_counter())
            yield batch


def trainer(rounds=5, steps=40, warmup=8):
    cache = tempfile.mkdtemp()
    jax.config.update("jax_compilation_cache_dir", cache)
    model = functools.partial(Mamba2LM, vocab_size=256, d_model=160, n_layers=4)
    with tempfile.TemporaryDirectory() as folder:
        data = Roxxel(pathlib.Path(folder) / "tokens.rox")
        data.write([np.random.default_rng(0).integers(0, 256, 2**22).astype(np.uint8)])
        stream = data.stream(512, 4, overlap=1)
        bare_step, bare_leaves = _bare_trainer(model)
        batches = [jnp.asarray(stream.batch(step)) for step in range(steps)]
        rates = {"bare": [], "trainer": []}
        for number in range(rounds + 1):
            start = time.perf_counter()
            for step, batch in enumerate(batches):
                if step == warmup:
                    jax.block_until_ready(bare_leaves)
                    start = time.perf_counter()
                bare_leaves, _ = bare_step.run(bare_leaves, batch)
            jax.block_until_ready(bare_leaves)
            bare = (steps - warmup) / (time.perf_counter() - start)
            times: list[float] = []
            run = Trainer(
                model=model,
                optimizer=optim.adamw(schedule=SCHEDULE),
                schedule=SCHEDULE,
                stream=Timed(stream, times),
                total_steps=steps,
                save_every=10**9,
                logger=functools.partial(Logger, console_every=10),
            )
            run.checkpointer = _NoCheckpoints
            run.run(pathlib.Path(folder) / f"run{number}")
            # The last batches are taken while steps are still in flight.
            elapsed = times[-3] - times[warmup]
            if number:  # the first round compiles
                rates["bare"].append(bare)
                rates["trainer"].append((steps - 3 - warmup) / elapsed)
    ratios = [t / b for t, b in zip(rates["trainer"], rates["bare"], strict=True)]
    print("whole trainer beside the bare step loop")
    for name, values in rates.items():
        print(f"  {name:8s} {statistics.median(values):7.2f} steps/s")
    print(
        f"  ratio    {statistics.median(ratios):7.3f}  {[f'{r:.3f}' for r in ratios]}"
    )


def logging(rounds=300, steps=20, wanted_secs=5e-3):
    """Many short rounds: other work on the machine comes and goes more slowly."""
    run, size = _steps_of(wanted_secs)
    x = jnp.eye(size) * 0.5
    costs, bare_secs = [], []
    with tempfile.TemporaryDirectory() as folder, Logger(folder, console=False) as log:
        for number in range(rounds):
            ways = {"bare": lambda step, values: None, "told": _teller(log, number)}
            order = reversed(ways.items()) if number % 2 else ways.items()
            secs = {name: _timed_steps(run, x, steps, tell) for name, tell in order}
            bare_secs.append(secs["bare"])
            costs.append(100 * (secs["told"] / secs["bare"] - 1))
    low, middle, high = statistics.quantiles(costs, n=4)
    # Of a median, were the costs distributed normally.
    error = 1.253 * (high - low) / 1.349 / len(costs) ** 0.5
    print("metrics of a step")
    print(f"  step     {1e3 * statistics.median(bare_secs):7.2f} ms")
    print(
        f"  cost     {middle:7.2f} % +- {error:.2f}  "
        f"({rounds} rounds of {steps} steps, quartiles {low:.2f} and {high:.2f})"
    )
    trains, logs = _processor_secs(run(x))
    print(f"  of a processor {1e6 * trains:.0f} us in the thread that trains")
    print(f"  of a processor {1e6 * logs:.0f} us in the logger's thread")


def _teller(log, number, steps=20):
    """What a run does for the metrics of a step, as a function of step and values."""
    names = ("loss", "grad_norm", "weight_norm", "learning_rate", "tokens")
    clock = StepClock()
    clock.switch("other")
    numbers = Numbers(Blocks(rngs=nnx.Rngs(0)), SPANS, clock, 0.0)

    def tell(step, values):
        with clock.phase("data"):
            pass
        with clock.phase("step"):
            clock.tick(512 * step)
            told = dict(zip(names, values, strict=True)) | numbers.row(step)
            log.log_metrics_summary(number * steps + step, **told)

    return tell


def _processor_secs(values, steps=2000):
    """Seconds of a processor a step: in this thread, and in the logger's."""
    jax.block_until_ready(values)
    with tempfile.TemporaryDirectory() as folder, Logger(folder, console=False) as log:
        tell = _teller(log, 0)
        whole, own = time.process_time(), time.thread_time()
        for step in range(1, steps + 1):
            tell(step, values)
        own = time.thread_time() - own
        log.flush()
        whole = time.process_time() - whole
    return own / steps, (whole - own) / steps


def _steps_of(wanted_secs):
    """A program of about so many seconds that gives five scalars; its matrix size."""

    def program(x):
        product = x @ x
        return [product[i, i] for i in range(5)]

    run = jax.jit(program)
    for size in range(256, 4096, 64):
        x = jnp.eye(size)
        jax.block_until_ready(run(x))
        taken = []
        for _ in range(10):
            start = time.perf_counter()
            jax.block_until_ready(run(x))
            taken.append(time.perf_counter() - start)
        if min(taken) >= wanted_secs:
            return run, size
    raise SystemExit("this machine is too fast for the largest matrix")


def _timed_steps(run, x, steps, tell):
    """Seconds a step, with `tell` called two steps later as the trainer does."""
    unseen = []
    start = time.perf_counter()
    for step in range(1, steps + 1):
        unseen.append((step, run(x)))
        if len(unseen) > 2:
            number, values = unseen.pop(0)
            jax.block_until_ready(values)
            tell(number, values)
    jax.block_until_ready([values for _, values in unseen])
    return (time.perf_counter() - start) / steps


def _bare_trainer(model):
    def create():
        made = model(rngs=nnx.Rngs(0))
        tx = optim.adamw(schedule=SCHEDULE)
        return made, nnx.Optimizer(made, tx, wrt=nnx.Param)

    modules = sharding.create_on(None, create)
    step = make_train_step(*modules, next_token_loss, schedule=SCHEDULE)
    return step, step.leaves(*modules)


class _NoCheckpoints:
    def __init__(self, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        pass

    def restore(self):
        return 0

    def save(self, *args, **kwargs):
        pass

    def wait(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = ["host", "logging", "trainer", "all"]
    parser.add_argument("what", choices=choices, default="all")
    what = parser.parse_args().what
    if what in ("host", "all"):
        host()
    if what in ("logging", "all"):
        logging()
    if what in ("trainer", "all"):
        trainer()


if __name__ == "__main__":
    main()
