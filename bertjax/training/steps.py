"""The pure functions of training: state, train_step and eval_step, and their jitted forms on a mesh."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from bertjax.config import OptimOptions
from bertjax.model.heads import HEADS, TaskModel
from bertjax.training import sharding
from bertjax.training.optim import keep_frozen, learning_rate_schedule, make_optimizer, mask_gradients, skipped_steps
from bertjax.training.selection import is_stacked, trainable
from bertjax.tree import flatten, unflatten

Array = jax.Array
Batch = dict[str, Array]

PACKED = ("position_ids", "segment_ids", "cls")
"""What only packed batches have (see bertjax.data.packing)."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a step reads and writes."""

    step: Array
    """Steps done, int32 scalar."""
    seed: Array
    """Seed of the dropout keys, uint32 scalar; the key of a step is fold_in(key(seed), step)."""
    params: Any
    """Parameter tree."""
    opt_state: Any
    """State of the optax optimizer."""
    batch_stats: Any
    """Running statistics of normalization variants; empty for those that have none."""


def loss_per_example(model: TaskModel, head: str, params: Any, batch: Batch, key: Array | None = None) -> Array:
    """Loss of each row, [batch] float32; `key` None turns dropout off."""
    return HEADS[head].loss(outputs(model, params, batch, key), batch["labels"])


def outputs(model: TaskModel, params: Any, batch: Batch, key: Array | None = None) -> Array:
    """Outputs of the head, [batch, outputs] float32; of a packed batch, one for each of its slots."""
    rows = (batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    packed = {name: batch[name] for name in PACKED if name in batch}
    return model.apply({"params": params}, *rows, key, **packed)


def train_step(
    model: TaskModel,
    head: str,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    options: OptimOptions,
    state: TrainState,
    batch: Batch,
) -> tuple[TrainState, dict[str, Array]]:
    """One optimizer step on the weighted mean loss of the batch.

    With accumulate = k the rows are cut into k parts (row i goes to part i mod k, so that each lies over all devices);
    the sums of loss and gradient over the parts are divided by the whole weight, as if the batch were one.

    Returns:
      The new state, and `loss`, `grad_norm` (of what trains, before clipping) and `learning_rate` as scalars.
    """
    key = jax.random.fold_in(jax.random.key(state.seed), state.step)

    def loss_sum(params: Any, part: Batch, key: Array) -> Array:
        return jnp.sum(loss_per_example(model, head, params, part, key) * part["weights"])

    weight = jnp.sum(batch["weights"])
    accumulate = options.accumulate

    def cut(x: Array) -> Array:
        # What is per example has several entries for each row of a packed batch: they stay with their row.
        rows = len(batch["input_ids"])
        if len(x) == rows:
            return x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1)
        each = len(x) // rows
        parted = x.reshape(-1, accumulate, each, *x.shape[1:]).swapaxes(0, 1)
        return parted.reshape(accumulate, -1, *x.shape[1:])

    def sums(params: Any) -> tuple[Array, Any]:
        if accumulate == 1:
            return jax.value_and_grad(loss_sum)(params, batch, key)
        parts = {name: cut(x) for name, x in batch.items()}

        def add(carry: tuple[Array, Any], xs: tuple[Batch, Array]) -> tuple[tuple[Array, Any], None]:
            part, index = xs
            value = jax.value_and_grad(loss_sum)(params, part, jax.random.fold_in(key, index))
            return jax.tree.map(jnp.add, carry, value), None

        zero = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params))
        return jax.lax.scan(add, zero, (parts, jnp.arange(accumulate)))[0]

    def mean(params: Any) -> tuple[Array, Any]:
        total, gradients = sums(params)
        return total, mask_gradients(options, jax.tree.map(lambda g: g / weight.astype(g.dtype), gradients))

    def gradient_at(params: Any, _: int) -> Any:
        with jax.numpy_dtype_promotion("strict"):
            return mean(params)[1]

    total, gradients = mean(state.params)
    # optax mixes Python scalars and dtypes in ways that strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        norm = optax.tree.norm(gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params, grad_fn=gradient_at)
        params = keep_frozen(options, state.params, optax.apply_updates(state.params, updates), state.params)
        rate = jnp.asarray(schedule(state.step), jnp.float32)
    new = dataclasses.replace(state, step=state.step + 1, params=params, opt_state=opt_state)
    return new, {"loss": total / weight, "grad_norm": norm, "learning_rate": rate} | skipped_steps(opt_state)


def eval_step(model: TaskModel, head: str, params: Any, batch: Batch) -> dict[str, Array]:
    """Loss [batch] and outputs [batch, outputs] of each row, dropout off."""
    z = outputs(model, params, batch)
    return {"loss": HEADS[head].loss(z, batch["labels"]), "outputs": z}


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """The compiled functions of a run and where its state lies."""

    train: Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]
    """Donates the state it is given."""
    evaluate: Callable[[Any, Batch], dict[str, Array]]
    shardings: TrainState
    """A NamedSharding for each leaf of the state."""
    abstract: TrainState
    """Shape and type of each leaf of the state, with its sharding."""
    init: Callable[[Array, Any], TrainState]
    """(seed, loaded parameters by path) -> state, born sharded; what is not loaded is drawn from the seed."""
    memory: Callable[[Batch], int | None]
    """Bytes that a training step on such a batch needs on a device besides state and batch; None where unknown."""
    pure: Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]
    """The training step as a pure function, not compiled."""


@functools.lru_cache(maxsize=8)
def make_steps(model: TaskModel, head: str, options: OptimOptions, steps: int, mesh: Mesh) -> Steps:
    """Builds the steps of a run. Equal arguments return the same compiled functions."""
    optimizer = make_optimizer(options, steps)
    schedule = learning_rate_schedule(options, steps)

    def init(seed: Array, loaded: dict[str, Array]) -> TrainState:
        params = init_params(model, jax.random.key(seed), loaded)
        return TrainState(
            step=jnp.zeros((), jnp.int32), seed=seed, params=params, opt_state=optimizer.init(params), batch_stats={}
        )

    shapes = jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32), {})
    trainable(options, shapes.params)  # a wrong glob is an error here, before anything is compiled
    whole = sharding.replicated(mesh)
    of_params = sharding.parameter_shardings(shapes.params, mesh)
    shardings = TrainState(
        step=whole,
        seed=whole,
        params=of_params,
        batch_stats=jax.tree.map(lambda _: whole, shapes.batch_stats),
        opt_state=optax.tree.map_params(
            optimizer, lambda _, s: s, shapes.opt_state, of_params, transform_non_params=lambda _: whole
        ),
    )
    rows = NamedSharding(mesh, sharding.ROWS)
    abstract = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)

    def on_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with jax.set_mesh(mesh):
                return function(*arguments)

        return run

    pure = functools.partial(train_step, model, head, optimizer, schedule, options)
    train = jax.jit(pure, out_shardings=(shardings, whole), donate_argnums=0)
    evaluate = jax.jit(functools.partial(eval_step, model, head), out_shardings=rows)

    def memory(batch: Batch) -> int | None:
        analysis = train.lower(abstract, batch).compile().memory_analysis()
        return None if analysis is None else int(analysis.temp_size_in_bytes)

    born = jax.jit(init, out_shardings=shardings)
    return Steps(on_mesh(train), on_mesh(evaluate), shardings, abstract, on_mesh(born), on_mesh(memory), pure)


def init_params(model: TaskModel, key: Array, loaded: dict[str, Array] | None = None) -> Any:
    """The model's parameters: `loaded` (by path) where given, fresh from `key` elsewhere.

    A loaded stack of fewer layers than the model has fills the lowest ones.
    """
    ids = jnp.zeros((1, 1), jnp.int32)
    fresh = flatten(model.init(key, ids, ids == 0, ids)["params"])
    for path, value in (loaded or {}).items():
        value, x = value.astype(fresh[path].dtype), fresh[path]
        short = is_stacked(path) and len(value) < len(x)
        fresh[path] = jnp.concatenate([value, x[len(value) :]]) if short else value
    return unflatten(fresh)
