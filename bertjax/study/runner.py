"""Trains the runs of a study, one after the other or shared out among processes, and writes its table and figure.

Each run is in a folder of its own and can be continued by itself. The same command goes on where a study was stopped:
runs that are done, or whose loss was no longer finite, are left as they are; runs in use by other processes are
passed over; the process that finds all of them ended writes the tables.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable

from bertjax import paths, stopping
from bertjax.config import to_json
from bertjax.errors import InputError, InUseError
from bertjax.progress import say
from bertjax.study.options import Member, StudyConfig, members
from bertjax.study.outcomes import forget_failure, outcome, record_failure
from bertjax.study.results import write_results
from bertjax.training import estimate, loop, replicas
from bertjax.training.job import prepare

# Field -> variables of a Slurm job array. Numbers of the array's tasks need not start at 0.
SLURM = ("SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN")


def run_study(config: StudyConfig) -> None:
    """Trains this process' share of a study's runs; writes tables and figure if then all have ended.

    Raises:
      InputError: anything wrong with the study or one of its configs, before the first run starts.
      Interrupted: a signal asked to stop; the run in progress is saved.
    """
    with stopping.graceful():
        runs, (jobs, job) = members(config), job_numbers(config)
        units = _units(runs, config)[job::jobs]
        own = [run for unit in units for run in unit]
        say(
            f"study   {config.folder}: {len(runs)} runs, {len({run.combination for run in runs})} combination(s) of "
            f"{config.study.seeds} seed(s)" + (f"; job {job} of {jobs} has {len(own)} of them" if jobs > 1 else "")
        )
        _check(config, own)
        shared = dataclasses.replace(config.study, jobs=1, job=0)
        paths.write_text(config.folder / "study.json", to_json(dataclasses.replace(config, study=shared)))
        for unit in units:
            waiting = [run for run in unit if not _ended(run)]
            if waiting:
                number = own.index(waiting[0]) + 1
                say("", f"run     {number} of {len(own)}: {waiting[0].label}, seed {_listed(waiting)}")
                TRAINERS[config.study.vectorize](waiting)
            stopping.check()
        left = [run for run in runs if outcome(run) is None]
        if left:
            say("", f"{len(runs) - len(left)} of {len(runs)} runs have ended; the tables are written when all have")
            say(*(f"        {run.config.folder} is left to another process" for run in left[:8]))
            return
        write_results(config, runs)


def dry_run(config: StudyConfig) -> None:
    """Prints a study's runs, how far each is, and what they would cost. Writes nothing but the token cache."""
    runs, (jobs, job) = members(config), job_numbers(config)
    units = _units(runs, config)[job::jobs]
    own = [run for unit in units for run in unit]
    _check(config, own)
    waiting = [run for run in own if not _ended(run)]
    for run in own:
        done = outcome(run)
        say(f"run     {run.config.folder}: {'to do' if done is None else done.status}")
    say(f"{len(own)} runs, {len(waiting)} of them to do")
    if waiting:
        say("", f"one of them, {waiting[0].config.folder}:")
        seconds = estimate.dry_run(waiting[0].config)
        say(
            "",
            f"time    about {estimate.duration(seconds * len(waiting))} for {len(waiting)} runs like this one"
            + (", one after the other" if config.study.vectorize == "none" else ", if trained one after the other"),
        )


def job_numbers(config: StudyConfig) -> tuple[int, int]:
    """Number of processes and number of this one.

    Raises:
      InputError: numbers that are none, or no Slurm job array where one is expected.
    """
    jobs, job = config.study.jobs, config.study.job
    if jobs == "slurm":
        found = [os.environ.get(name, "") for name in SLURM]
        if not all(text.isdecimal() for text in found):
            raise InputError(f"--study.jobs=slurm: this is no task of a Slurm job array, {SLURM[0]} is not set")
        jobs, job = int(found[0]), int(found[1]) - int(found[2])
    if jobs < 1 or not 0 <= job < jobs:
        raise InputError(f"--study.job={job} of --study.jobs={jobs}: expected a job from 0 to jobs - 1")
    return jobs, job


def _units(runs: Iterable[Member], config: StudyConfig) -> list[list[Member]]:
    """What is trained together: single runs, or the seeds of a combination."""
    if config.study.vectorize == "none":
        return [[run] for run in runs]
    units: dict[tuple[str, ...], list[Member]] = {}
    for run in runs:
        units.setdefault(run.combination, []).append(run)
    return list(units.values())


def _check(config: StudyConfig, runs: list[Member]) -> None:
    """Reads model and data of each combination that has runs to do; all that is wrong is said at once."""
    if (config.folder / "run.json").exists():
        raise InputError(f"{config.folder} is a run, not a study: choose another --name")
    problems, seen = [], set()
    for run in runs:
        try:
            if not _ended(run) and run.combination not in seen:
                seen.add(run.combination)
                job = prepare(run.config)
                if config.study.vectorize == "seeds":
                    replicas.check(job)
        except InputError as error:
            problems.append(f"{run.label}, seed {run.seed}: {error}")
        stopping.check()
    if problems:
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise InputError(f"nothing was trained: {'; '.join(problems[:4])}{more}")


def _ended(run: Member) -> bool:
    found = outcome(run)
    return found is not None and found.final


def _alone(runs: list[Member]) -> None:
    for run in runs:
        try:
            loop.train(run.config)
        except InputError as error:
            _lost(run, error)
        else:
            forget_failure(run)


def _together(runs: list[Member]) -> None:
    if len(runs) == 1 or not replicas.worthwhile([run.config for run in runs]):
        _alone(runs)
        return
    ended = replicas.train([run.config for run in runs])
    for run in runs:
        error = ended[run.config.folder]
        if error is None:
            forget_failure(run)
        else:
            _lost(run, error)


TRAINERS: dict[str, Callable[[list[Member]], None]] = {"none": _alone, "seeds": _together}


def _lost(run: Member, error: InputError) -> None:
    if isinstance(error, InUseError):
        say(f"passed over: {error}")
        return
    record_failure(run, error)
    say(f"failed  {run.config.folder}: {error}")


def _listed(runs: list[Member]) -> str:
    return ", ".join(str(run.seed) for run in runs)
