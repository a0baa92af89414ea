"""What a training run will do and cost, without doing it: rows, labels, lengths, memory, and time from a few steps."""

import itertools
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import RunConfig
from bertjax.data import batches as batching
from bertjax.data.features import Features
from bertjax.progress import say
from bertjax.training import sharding
from bertjax.training.job import Job, prepare

WIDTH = 40  # characters of the longest bar of the histogram
SAMPLE = 200  # batches whose lengths are looked at


def dry_run(config: RunConfig) -> float:
    """Prints what `train` would do with this config and what it would cost. Writes nothing but the token cache.

    Returns:
      The seconds it would take.

    Raises:
      InputError: anything wrong with config, model or data.
    """
    job = prepare(config)
    plan = [*job.plan(), *_histogram(job)]
    costs, seconds = _cost(job)
    say(*plan, *costs, "dry run: nothing was written but the token cache")
    return seconds


def _histogram(job: Job) -> list[str]:
    """Rows by the length to which they are padded."""
    lines = []
    buckets = np.array(batching.bucket_lengths(job.config.data))
    for name in ("train", "dev"):
        features: Features = getattr(job.splits, name)
        counts = np.bincount(np.searchsorted(buckets, features.lengths), minlength=len(buckets))
        low = np.concatenate([[1], buckets[:-1] + 1])
        lines.append(f"lengths {name} rows by length in word pieces")
        lines += [
            f"        {a:>4}-{b:<4} {count:>8,} {'█' * round(WIDTH * count / counts.max())}"
            for a, b, count in zip(low, buckets, counts, strict=True)
            if count
        ]
        share = features.truncated / len(features)
        lines.append(f"        truncated to {buckets[-1]}: {features.truncated:,} ({share:.2%})")
    return lines


def _cost(job: Job) -> tuple[list[str], float]:
    """Memory and time as text, and the time in seconds.

    From one real step and one real evaluation batch of the smallest and of the largest size, in positions.
    """
    sizes = Counter(b["input_ids"].size for b in itertools.islice(job.train_batches(), min(job.total, SAMPLE)))
    dev = job.dev_batches()
    dev_sizes = Counter(b["input_ids"].size for b in dev)
    say("measure a few steps; they are thrown away")
    loaded = {path: jnp.asarray(value) for path, value in job.loaded.items()}
    state = job.steps.init(jnp.asarray(job.config.train.seed, jnp.uint32), loaded)
    total_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    on_device = max(
        sum(s.data.nbytes for x in jax.tree.leaves(state) for s in x.addressable_shards if s.device == device)
        for device in jax.local_devices()
    )
    step_seconds, evaluation_seconds, compile_seconds = {}, {}, 0.0
    for size in sorted({min(sizes), max(sizes)}):
        batch = _put(job, _of_size(job.train_batches(), size))
        state, first = _timed(lambda s, b=batch: job.steps.train(s, b)[0], state, chain=True)
        state, step_seconds[size] = _timed(lambda s, b=batch: job.steps.train(s, b)[0], state, chain=True)
        compile_seconds = max(compile_seconds, first - step_seconds[size])
    for size in sorted({min(dev_sizes), max(dev_sizes)}):
        batch = _put(job, _of_size(dev, size))
        for _ in range(2):
            _, evaluation_seconds[size] = _timed(lambda p, b=batch: job.steps.evaluate(p, b), state.params)
    temporary = job.steps.memory(_put(job, _of_size(job.train_batches(), max(sizes))))
    step = _mean(step_seconds, sizes)
    evaluation = _mean(evaluation_seconds, dev_sizes) * len(dev)
    evaluations = 1 + -(-job.total // job.eval_every)
    compiling = compile_seconds * len(sizes)
    total = compiling + step * job.total + evaluation * evaluations
    lines = [
        f"memory  state {_bytes(total_bytes)} ({_bytes(on_device)} on a device); "
        + (f"a step needs {_bytes(temporary)} besides" if temporary is not None else "the compiler gives no size"),
        f"disk    up to 3 checkpoints of {_bytes(total_bytes)} and {len(job.snapshot_steps)} snapshots of "
        f"{_bytes(sum(x.nbytes for x in jax.tree.leaves(state.params)))} in {job.run.folder}",
        f"time    about {duration(total)}: {job.total} steps of {step:.2f} s, {evaluations} evaluations of "
        f"{evaluation:.1f} s, compiling {compiling:.0f} s",
    ]
    return lines, total


def _put(job: Job, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return sharding.put_batch(batching.without_index(batch), job.mesh)


def _of_size(batches: Iterable[dict[str, np.ndarray]], size: int) -> dict[str, np.ndarray]:
    return next(batch for batch in batches if batch["input_ids"].size == size)


def _timed(function: Any, argument: Any, chain: bool = False) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = jax.block_until_ready(function(argument))
    return (result if chain else None), time.perf_counter() - begin


def _mean(seconds: dict[int, float], sizes: Counter) -> float:
    """Mean over the sizes that occur; time between the two measured ones is taken as linear."""
    known = sorted(seconds)
    at = np.interp(list(sizes), known, [seconds[size] for size in known])
    return float(np.average(at, weights=list(sizes.values())))


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1000
    raise AssertionError


def duration(seconds: float) -> str:
    """Seconds as text, in a unit that suits them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
