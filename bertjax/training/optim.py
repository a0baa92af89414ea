"""Optimizers, learning-rate schedules, and which parameters decay.

`PARAMETER_GROUPS` assigns every parameter to one group by its path; a path that fits none or several is an error.
"""

from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from bertjax.config import BELOW_ONE, OptimOptions, check_ranges
from bertjax.errors import InputError
from bertjax.training.selection import is_stacked, rate_factors, trainable
from bertjax.tree import flatten, unflatten

# Group -> path patterns. Weight decay acts on `decay` only (as in BERT: not on biases and layer norms).
PARAMETER_GROUPS: dict[str, tuple[str, ...]] = {
    "decay": ("*/kernel", "encoder/embeddings/word", "encoder/embeddings/position", "encoder/embeddings/token_type"),
    "no_decay": ("*/bias", "*/norm/scale"),
}


# Option -> smallest and largest value; None: any finite number.
RANGES: dict[str, tuple[float, float | None]] = {
    "learning_rate": (0, None),
    "warmup": (0, 1),
    "weight_decay": (0, None),
    "b1": (0, BELOW_ONE),
    "b2": (0, BELOW_ONE),
    "eps": (0, None),
    "momentum": (0, BELOW_ONE),
    "sam_rho": (0, None),
    "layer_decay": (0, 1),
    "clip_norm": (0, None),
    "accumulate": (1, None),
    "max_skipped": (0, None),
}
_ENDLESS = 2**31 - 1


def parameter_groups(params: Any) -> dict[str, str]:
    """The group of each parameter path.

    Raises:
      InputError: a parameter that fits no group or more than one.
    """
    groups = {}
    for path in flatten(params):
        fits = [group for group, patterns in PARAMETER_GROUPS.items() if any(fnmatch(path, p) for p in patterns)]
        if len(fits) != 1:
            raise InputError(f"parameter {path} fits {len(fits)} parameter groups ({', '.join(fits)}), expected one")
        groups[path] = fits[0]
    return groups


def decay_mask(params: Any) -> Any:
    """A tree of booleans: true where weight decay acts."""
    return unflatten({path: group == "decay" for path, group in parameter_groups(params).items()})


# Schedule -> the rate after the warm-up, from (peak, steps left).
SCHEDULES: dict[str, Callable[[float, int], optax.Schedule]] = {
    "linear": lambda peak, steps: optax.schedules.linear_schedule(peak, 0.0, steps),
    "cosine": lambda peak, steps: optax.schedules.cosine_decay_schedule(peak, steps),
    "constant": lambda peak, _: optax.schedules.constant_schedule(peak),
}


def learning_rate_schedule(options: OptimOptions, steps: int) -> optax.Schedule:
    """Linear warm-up from 0 over `warmup · steps`, then the schedule of the table until `steps`."""
    warmup = round(options.warmup * steps)
    up = optax.schedules.linear_schedule(0.0, options.learning_rate, warmup)
    down = SCHEDULES[options.schedule](options.learning_rate, max(1, steps - warmup))
    return optax.schedules.join_schedules([up, down], [warmup]) if warmup else down


def _adam_without_correction(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam's direction m / (sqrt(v) + eps) from moments that start at 0 and are not corrected for it."""

    def update(gradients: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, Any]:
        mu = optax.tree.update_moment(gradients, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(gradients, state.nu, b2, 2)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return direction, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def _trust_ratio() -> optax.GradientTransformation:
    """LAMB's ratio ‖parameter‖ / ‖update‖, of each layer by itself where a parameter holds a stack of layers."""
    ratio = optax.scale_by_trust_ratio()

    def of_leaf(update: jax.Array, param: jax.Array) -> jax.Array:
        return ratio.update(update, ratio.init(param), param)[0]

    def scale(updates: Any, params: Any) -> Any:
        leaves = flatten(params)
        return unflatten(
            {
                path: (jax.vmap(of_leaf) if is_stacked(path) else of_leaf)(update, leaves[path])
                for path, update in flatten(updates).items()
            }
        )

    return optax.stateless(scale)


def _adamw(options: OptimOptions, schedule: optax.Schedule) -> optax.GradientTransformation:
    if not options.bias_correction:
        return optax.chain(
            _adam_without_correction(options.b1, options.b2, options.eps),
            optax.add_decayed_weights(options.weight_decay, decay_mask),
            optax.scale_by_learning_rate(schedule),
        )
    return optax.adamw(
        schedule, b1=options.b1, b2=options.b2, eps=options.eps, weight_decay=options.weight_decay, mask=decay_mask
    )


def _sgd(options: OptimOptions, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Momentum with decoupled weight decay (SGDW, Loshchilov & Hutter 2019)."""
    return optax.chain(
        optax.trace(options.momentum) if options.momentum else optax.identity(),
        optax.add_decayed_weights(options.weight_decay, decay_mask),
        optax.scale_by_learning_rate(schedule),
    )


def _lamb(options: OptimOptions, schedule: optax.Schedule) -> optax.GradientTransformation:
    """LAMB (You et al. 2020): optax.lamb, but with trust ratios per layer of the stack."""
    return optax.chain(
        optax.scale_by_adam(options.b1, options.b2, options.eps),
        optax.add_decayed_weights(options.weight_decay, decay_mask),
        _trust_ratio(),
        optax.scale_by_learning_rate(schedule),
    )


OPTIMIZERS: dict[str, Callable[[OptimOptions, optax.Schedule], optax.GradientTransformation]] = {
    "adamw": _adamw,
    "sgd": _sgd,
    "lamb": _lamb,
    "sam": _adamw,  # on the gradient at the perturbed parameters, see make_optimizer
}
_ADAM = frozenset({"b1", "b2", "eps"})
# Optimizer -> those options that not all optimizers use, but it does.
USES: dict[str, frozenset[str]] = {
    "adamw": _ADAM | {"bias_correction"},
    "sgd": frozenset({"momentum"}),
    "lamb": _ADAM,
    "sam": _ADAM | {"bias_correction", "sam_rho"},
}


def check_options(options: OptimOptions) -> None:
    """InputError if a value is out of range, or an option that the optimizer does not use was set."""
    check_ranges("optim", options, RANGES)
    default = OptimOptions()
    unused = sorted(frozenset().union(*USES.values()) - USES[options.name])
    if wrong := [name for name in unused if getattr(options, name) != getattr(default, name)]:
        named = ", ".join(f"--optim.{name}={getattr(options, name)}" for name in wrong)
        users = ", ".join(sorted(name for name, uses in USES.items() if uses.issuperset(wrong)))
        raise InputError(f"--optim.name={options.name} does not use {named}" + (f"; used by: {users}" if users else ""))


def keep_frozen(options: OptimOptions, params: Any, new: Any, old: Any) -> Any:
    """`new` where a parameter of the tree `params` trains, `old` where it does not, bit for bit."""
    mask = trainable(options, params)
    return new if mask is None else jax.tree.map(jnp.where, mask, new, old)


def mask_gradients(options: OptimOptions, gradients: Any) -> Any:
    """The gradients with zeros where parameters do not train."""
    return keep_frozen(options, gradients, gradients, jax.tree.map(jnp.zeros_like, gradients))


def _perturbation(rho: float) -> optax.GradientTransformation:
    """Down the gradient by `rho` in the global norm; none where the gradient is 0."""

    def scale(gradients: Any, params: Any) -> Any:
        norm = jnp.maximum(optax.tree.norm(gradients), jnp.finfo(jnp.float32).tiny)
        return jax.tree.map(lambda g: (-rho * (g / norm)).astype(g.dtype), gradients)

    return optax.stateless(scale)


def make_optimizer(options: OptimOptions, steps: int) -> optax.GradientTransformationExtraArgs:
    """Clipping by the global norm, then the optimizer of the table; skips gradients that are not finite if asked.

    Updates of parameters that do not train are 0. The update of `sam` (Foret et al. 2021) takes `grad_fn(params, i)`
    besides and calls it once, at the perturbed parameters; clipping and skipping act on that gradient.
    """
    check_options(options)
    optimizer = OPTIMIZERS[options.name](options, learning_rate_schedule(options, steps))
    clip = optax.clip_by_global_norm(options.clip_norm) if options.clip_norm else optax.identity()
    optimizer = optax.chain(clip, optimizer)
    if options.layer_decay != 1:
        optimizer = optax.chain(
            optimizer, optax.stateless(lambda u, p: _scale(u, rate_factors(options.layer_decay, u)))
        )
    if options.freeze or options.train_only:
        masked = optax.stateless(lambda u, _: mask_gradients(options, u))
        optimizer = optax.chain(masked, optimizer, masked)
    # The count of skipped steps is part of the state; the loop stops the run when it is too high.
    if options.max_skipped:
        optimizer = optax.apply_if_finite(optimizer, max_consecutive_errors=_ENDLESS)
    if options.name == "sam":
        # Outside of the skipping, because what must be finite is the second gradient.
        optimizer = optax.contrib.sam(optimizer, _perturbation(options.sam_rho), opaque_mode=True)
    return optax.with_extra_args_support(optimizer)


def _scale(updates: Any, factors: Any) -> Any:
    return jax.tree.map(lambda u, f: u * f.astype(u.dtype), updates, factors)


def skipped_steps(opt_state: Any) -> dict[str, Any]:
    """{"skipped": steps that were skipped so far} where the optimizer skips; {} where it does not."""
    state = opt_state.opt_state if isinstance(opt_state, optax.contrib.SAMState) else opt_state
    return {"skipped": state.total_notfinite} if isinstance(state, optax.ApplyIfFiniteState) else {}
