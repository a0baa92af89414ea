"""Optimizers, the learning-rate schedule, and which parameters decay.

`PARAMETER_GROUPS` assigns every parameter to one group by its path; a path that fits none or several is an error.
"""

from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import optax

from bertjax.config import BELOW_ONE, OptimOptions, check_ranges
from bertjax.errors import InputError
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


def learning_rate_schedule(options: OptimOptions, steps: int) -> optax.Schedule:
    """Linear warm-up from 0 over `warmup · steps`, then linear decay to 0 at `steps`."""
    warmup = round(options.warmup * steps)
    up = optax.schedules.linear_schedule(0.0, options.learning_rate, warmup)
    down = optax.schedules.linear_schedule(options.learning_rate, 0.0, max(1, steps - warmup))
    return optax.schedules.join_schedules([up, down], [warmup]) if warmup else down


def _adamw(options: OptimOptions, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(
        schedule, b1=options.b1, b2=options.b2, eps=options.eps, weight_decay=options.weight_decay, mask=decay_mask
    )


OPTIMIZERS: dict[str, Callable[[OptimOptions, optax.Schedule], optax.GradientTransformation]] = {
    "adamw": _adamw,
}


def make_optimizer(options: OptimOptions, steps: int) -> optax.GradientTransformation:
    """Clipping by the global norm, then the optimizer of the table; skips gradients that are not finite if asked."""
    check_ranges("optim", options, RANGES)
    optimizer = OPTIMIZERS[options.name](options, learning_rate_schedule(options, steps))
    clip = optax.clip_by_global_norm(options.clip_norm) if options.clip_norm else optax.identity()
    optimizer = optax.chain(clip, optimizer)
    # The count of skipped steps is part of the state; the loop stops the run when it is too high.
    return optax.apply_if_finite(optimizer, max_consecutive_errors=_ENDLESS) if options.max_skipped else optimizer


def skipped_steps(opt_state: Any) -> dict[str, Any]:
    """{"skipped": steps that were skipped so far} where the optimizer skips; {} where it does not."""
    return {"skipped": opt_state.total_notfinite} if isinstance(opt_state, optax.ApplyIfFiniteState) else {}
