"""Several seeds of a run in one program: one step for all by `vmap`, each with its own batches, files and scores.

Afterwards nothing tells such a run from one that was trained alone: parameters, optimizer state, dropout keys, order of
the rows, metrics, checkpoints and snapshots are its own. The replicas are in lockstep, and all batches need one
length, because a dropout mask depends on it.
"""

import contextlib
import copy
import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax import locks, paths, stopping
from bertjax.config import RunConfig
from bertjax.data import batches as batching
from bertjax.errors import InputError
from bertjax.progress import bar, say
from bertjax.run import Run
from bertjax.training import loop, sharding
from bertjax.training.checkpoint import checkpoint_steps
from bertjax.training.job import Job, finished, prepare
from bertjax.training.steps import Steps

REPLICA = "replica"
MEASURED = 5  # steps that are timed in turns to see whether one program for all is faster
MARGIN = 1.1  # how much faster its steps have to be: taking the runs apart to evaluate and save them costs time too
CHOICE = "vectorize.json"


def check(job: Job) -> None:
    """InputError if the seeds of this run cannot be trained in one program."""
    if jax.process_count() > 1:
        raise InputError("--study.vectorize=seeds works in one process, here are several: leave it out")
    if job.config.data.packing == "all":
        raise InputError(
            "--study.vectorize=seeds needs training batches of one shape, packed ones differ in their number of rows: "
            "expected --data.packing=eval or none, or no --study.vectorize"
        )
    buckets = np.array(batching.bucket_lengths(job.config.data))
    lengths = buckets[np.unique(np.searchsorted(buckets, job.splits.train.lengths))]
    if len(lengths) > 1:
        raise InputError(
            "--study.vectorize=seeds needs training batches of one length, because dropout depends on it; these rows "
            f"are padded to {', '.join(map(str, lengths))}: give one length, for example "
            f"--data.buckets={lengths[-1]} --data.max_length={lengths[-1]}, or leave --study.vectorize out"
        )


def worthwhile(configs: Sequence[RunConfig]) -> bool:
    """Whether one program for all is faster than one run after the other; on a CPU this is measured and said.

    The answer is kept in a file beside the runs, so that a study that is continued does as it did before.
    """
    if jax.devices()[0].platform != "cpu":
        return True
    path = configs[0].folder.parent / CHOICE
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return bool(json.loads(path.read_text())["together"])
    ratio = measure(prepare(configs[0]), len(configs))
    faster = ratio > MARGIN
    paths.write_text(path, json.dumps({"ratio": round(ratio, 3), "seeds": len(configs), "together": faster}) + "\n")
    say(
        f"seeds   a step of {len(configs)} in one program is {ratio:.2f} times as fast as of one after the other "
        f"(expected at least {MARGIN}): " + ("trained together" if faster else "trained one after the other")
    )
    return faster


def measure(job: Job, count: int) -> float:
    """Seconds of a step of `count` runs one after the other, divided by those of a step of all together."""
    say(f"measure {MEASURED} steps of one run and of {count} in one program; they are thrown away")
    iterator = job.train_batches()
    batches = [next(iterator) for _ in range(count)]
    one = sharding.put_batch(batching.without_index(batches[0]), job.mesh)
    program = together(job.steps, job.mesh, count)
    states, all_batches = program.stack([_fresh(job)] * count), program.put(batches)
    state, ratios = _fresh(job), []
    for _ in range(1 + MEASURED):  # in turns, so that other work on the machine slows both
        (state, _), alone = _timed(job.steps.train, state, one)
        (states, _), all_together = _timed(program.train, states, all_batches)
        ratios.append(count * alone / all_together)
    return float(np.median(ratios[1:]))  # the first compiled


def train(configs: Sequence[RunConfig]) -> dict[Path, InputError | None]:
    """Trains (or continues) runs that differ in name and seed alone, in lockstep.

    Runs that stand at different steps continue from the last one for which all have a checkpoint; those that have none
    in common with the others are trained alone.

    Returns:
      Folder -> None for runs that are done, or why one is not: DivergedError, InUseError, another InputError.

    Raises:
      InputError: anything wrong with config, model or data.
      Interrupted: a signal asked to stop; all runs are saved.
    """
    first = prepare(configs[0])
    check(first)
    ended: dict[Path, InputError | None] = {}
    with contextlib.ExitStack() as held:
        jobs = []
        for config in configs:
            folder = config.folder
            try:
                held.enter_context(locks.exclusive(folder / ".lock", f"the run {folder}"))
                if finished(folder, config) is None:
                    run = Run(folder, config, copy.deepcopy(first.run.info))
                    jobs.append(dataclasses.replace(first, config=config, run=run))
                ended[folder] = None
            except InputError as error:
                ended[folder] = error
        for job in list(jobs):
            try:
                loop.begin(job)
            except InputError as error:
                ended[job.config.folder] = error
                jobs.remove(job)
        say(*(jobs or [first])[0].plan(), f"seeds   {len(jobs)} in one program")
        with stopping.graceful():
            ended |= _trained(jobs)
    return ended


def _groups(jobs: Iterable[Job]) -> list[tuple[list[Job], int]]:
    """Runs that can be trained together, each with the step at which they stand; all runs are in one of them."""
    steps = [(job, set(checkpoint_steps(job.config.folder / "checkpoints"))) for job in jobs]
    fresh, begun = [job for job, found in steps if not found], [(job, found) for job, found in steps if found]
    common = set.intersection(*(found for _, found in begun)) if begun else set()
    groups = [([job for job, _ in begun], max(common))] if common else [([job], max(found)) for job, found in begun]
    return [*groups, *([(fresh, 0)] if fresh else [])]


class Together:
    """The training step of `count` runs in one program, and how their states lie over the devices.

    Of the devices over which rows are split, as many as divide `count` are given whole replicas.
    """

    def __init__(self, steps: Steps, mesh: Mesh, count: int) -> None:
        sizes = dict(mesh.shape)
        replicas = math.gcd(count, sizes["data"])
        shape = (replicas, sizes["data"] // replicas, sizes["fsdp"], sizes["tensor"])
        # The devices stay in the order of the run's own mesh, so that states move between the two by a jitted function.
        self._mesh = Mesh(mesh.devices.reshape(shape), (REPLICA, *sharding.AXES), axis_types=(AxisType.Auto,) * 4)
        self._shardings = jax.tree.map(lambda s: NamedSharding(self._mesh, P(REPLICA, *s.spec)), steps.shardings)
        self._rows = NamedSharding(self._mesh, P(REPLICA, *sharding.ROWS))
        self._train = jax.jit(
            jax.vmap(steps.pure, spmd_axis_name=REPLICA),
            out_shardings=(self._shardings, NamedSharding(self._mesh, P(REPLICA))),
            donate_argnums=0,
        )
        self._take = jax.jit(lambda states, i: jax.tree.map(lambda x: x[i], states), out_shardings=steps.shardings)

    def train(self, states: Any, batch: dict[str, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
        """One step of each replica; donates the states. Values are [replica]."""
        with jax.set_mesh(self._mesh):
            return self._train(states, batch)

    def put(self, batches: Sequence[dict[str, np.ndarray]]) -> dict[str, jax.Array]:
        """Lays one host batch for each replica over the devices."""
        return {
            name: jax.device_put(np.stack([batch[name] for batch in batches]), self._rows)
            for name in batching.without_index(batches[0])
        }

    def stack(self, states: Iterable[Any]) -> Any:
        """One state whose leaves are [replica, ...]."""
        leaves = [jax.tree.leaves(state) for state in states]
        shardings, structure = jax.tree.flatten(self._shardings)
        stacked = []
        for index, where in enumerate(shardings):
            stacked.append(jax.device_put(np.stack([np.asarray(own[index]) for own in leaves]), where))
            for own in leaves:
                own[index] = None  # leaf by leaf, so that not everything is there twice
        return jax.tree.unflatten(structure, stacked)

    def take(self, states: Any, replica: int) -> Any:
        """The state of one replica, laid out like that of a run alone."""
        return self._take(states, jnp.int32(replica))


@functools.lru_cache(maxsize=4)
def together(steps: Steps, mesh: Mesh, count: int) -> Together:
    """Equal arguments return the same compiled functions."""
    return Together(steps, mesh, count)


@dataclasses.dataclass(frozen=True)
class _Element:
    """One replica's number in an array that is still on the device."""

    values: jax.Array
    replica: int

    def __float__(self) -> float:
        return float(np.asarray(self.values)[self.replica])


@dataclasses.dataclass
class _Lane:
    """One run among those that are trained together."""

    job: Job
    session: loop.Session
    files: contextlib.ExitStack
    number: int
    """Its place in the stacked states."""


class _Lanes:
    """Runs that are trained together; one that cannot go on leaves the others alone."""

    def __init__(self) -> None:
        self.live: list[_Lane] = []
        self.ended: dict[Path, InputError | None] = {}

    def open(self, job: Job, at: int) -> None:
        """Adds a run, unless its files cannot be read."""
        files = contextlib.ExitStack()
        with self._ending(job.config.folder, files):
            session = files.enter_context(loop.opened(job, at))
            if self.live:
                session.dev = self.live[0].session.dev  # they are the same rows
            self.live.append(_Lane(job, session, files, len(self.live)))

    def each(self) -> Iterator[tuple[int, loop.Session, contextlib.AbstractContextManager[None]]]:
        """Number and session of each run that still trains; in the context an InputError ends that run alone."""
        for lane in list(self.live):
            yield lane.number, lane.session, self._ending(lane.job.config.folder, lane.files)

    def finish(self, program: Together, states: Any) -> None:
        """Closes the files of all runs that came to the end, and writes their results."""
        for lane in list(self.live):
            with self._ending(lane.job.config.folder, lane.files):
                best = lane.session.checkpoints.best
                lane.files.close()
                loop.finish(lane.job, program.take(states, lane.number).params, lane.session.scores, best)

    def close(self) -> None:
        """Closes what is still open."""
        for lane in self.live:
            with contextlib.suppress(InputError):  # it ends by another error
                lane.files.close()

    @contextlib.contextmanager
    def _ending(self, folder: Path, files: contextlib.ExitStack) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            say(f"stops   {folder}, the other seeds go on")
            self.ended[folder] = error
            self.live = [lane for lane in self.live if lane.job.config.folder != folder]
            with contextlib.suppress(InputError):  # what cannot be saved is not the reason
                files.close()


def _trained(jobs: Sequence[Job]) -> dict[Path, InputError]:
    """Trains the runs, as many of them together as can be; returns why some could not be."""
    ended: dict[Path, InputError] = {}
    for group, at in _groups(jobs):
        lanes = _Lanes()
        try:
            for job in group:
                lanes.open(job, at)
            level = len({lane.session.resumed.step for lane in lanes.live}) < 2
            if lanes.live and level:
                _lockstep(lanes)
        finally:
            lanes.close()
        ended |= lanes.ended
        if not level:  # damaged checkpoints were set aside: the others now have other steps in common
            ended |= _trained([lane.job for lane in lanes.live])
    return ended


def _lockstep(lanes: _Lanes) -> None:
    sessions = [lane.session for lane in lanes.live]
    job, step = lanes.live[0].job, sessions[0].resumed.step
    program = together(job.steps, job.mesh, len(sessions))
    states = program.stack([session.resumed.state for session in sessions])
    for session in sessions:
        session.resumed = dataclasses.replace(session.resumed, state=None)
    with bar(job.total, f"train {len(sessions)} seeds", "step", initial=step) as progress:
        try:
            while lanes.live:
                stopping.check()
                if sessions[0].due(step):
                    scores = []
                    for number, session, ending in lanes.each():
                        with ending:
                            scores.append(session.keep(step, program.take(states, number)).rpartition(" ")[2])
                    for _, session, _ in lanes.each():
                        if session.scores is not None:  # the others' evaluations are no training either
                            session.log.restart_clock()
                    progress.set_postfix_str(f"dev {', '.join(scores)}")
                if step == job.total:
                    break
                batches = [next(session.iterator) for session in sessions]
                started, seconds = time.perf_counter(), None
                states, values = program.train(states, program.put(batches))
                step += 1
                for number, session, ending in lanes.each():
                    own = {name: _Element(value, number) for name, value in values.items()}
                    with ending:
                        seconds = session.collect(step, own, batches[number]["index"], started)
                loop.say_compiled(seconds)
                progress.update()
        except stopping.Interrupted:
            for number, session, ending in lanes.each():
                with ending:
                    session.stop(step, program.take(states, number))
            raise
    lanes.finish(program, states)


def _fresh(job: Job) -> Any:
    loaded = {path: jnp.asarray(value) for path, value in job.loaded.items()}
    return job.steps.init(jnp.asarray(job.config.train.seed, jnp.uint32), loaded)


def _timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = jax.block_until_ready(function(*arguments))
    return result, time.perf_counter() - begin
