"""Seeds trained in one program: each equals the run alone, on any number of devices, through interruptions."""

import dataclasses
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import tiny_checkpoint, tiny_tokenizer

from bertjax import locks, stopping
from bertjax.config import DataOptions, MeshOptions, ModelOptions, OptimOptions, RunConfig, TrainOptions
from bertjax.errors import DivergedError, InputError, InUseError
from bertjax.run import Run
from bertjax.study import runner
from bertjax.study.options import StudyConfig, StudyOptions, members
from bertjax.study.outcomes import outcome
from bertjax.training import loop, replicas, sharding
from bertjax.training.job import prepare
from bertjax.training.records import read_jsonl
from bertjax.tree import flatten

SEEDS = 3
MAKE_MESH = sharding.make_mesh
# In exact arithmetic the key bias has no gradient (softmax ignores what all logits of a query share). Adam makes steps
# of the usual length out of the rounding error that stands in its place.
NO_GRADIENT = "attention/key/bias"


@pytest.fixture(scope="module")
def base(tmp_path_factory, one_device):
    folder = tmp_path_factory.mktemp("replicas")
    tokenizer = tiny_tokenizer(folder / "model")
    tiny_checkpoint(folder / "model", vocab_size=len(tokenizer), num_hidden_layers=2, max_position_embeddings=16)
    rng = np.random.default_rng(0)
    words = ("good great", "bad dull", "red blue")
    lines = [f"{' '.join(rng.choice(words[i % 3].split(), 1 + i % 4))} {i}\t{'abc'[i % 3]}" for i in range(60)]
    (folder / "rows.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return RunConfig(
        name="alone",
        runs=str(folder / "runs"),
        model=ModelOptions(path=str(folder / "model")),
        data=DataOptions(train=str(folder / "rows.tsv"), dev_rows=20, max_length=12, buckets=(), cache=""),
        optim=OptimOptions(learning_rate=1e-3),
        train=TrainOptions(steps=10, batch_size=8, eval_batch_size=8, eval_every=4, log_every=3, snapshots=2),
    )


def seeds(base, name, count=SEEDS):
    study = dataclasses.replace(StudyConfig.of(base), name=name, study=StudyOptions(seeds=count))
    return [member.config for member in members(study)]


@pytest.fixture(scope="module")
def alone(base):
    """Each seed trained by itself."""
    return [loop.train(config) for config in seeds(base, "alone")]


@pytest.fixture(scope="module")
def together(base):
    """All seeds trained in one program."""
    configs = seeds(base, "together")
    assert replicas.train(configs) == {config.folder: None for config in configs}
    return [Run.open(config.folder) for config in configs]


def assert_same(run, other, loss=1e-5, params=1e-4):
    """Nothing but rounding tells two runs apart: records, checkpoints, snapshots, results, state."""
    ours, theirs = (read_jsonl(r.folder / "metrics.jsonl") for r in (run, other))
    assert [list(record) for record in ours] == [list(record) for record in theirs]
    for a, b in zip(ours, theirs, strict=True):
        for key in ("train/loss", "dev/loss"):
            assert a.get(key) == pytest.approx(b.get(key), abs=loss), (a["step"], key)
    assert run.snapshot_steps == other.snapshot_steps
    mesh = sharding.make_mesh(run.config.mesh)
    for step in run.snapshot_steps:
        a, b = (flatten(r.params(step, mesh)) for r in (run, other))
        for path, value in b.items():
            if path.endswith(NO_GRADIENT):
                continue
            np.testing.assert_allclose(a[path], value, atol=params, rtol=0, err_msg=f"{step} {path}")
    names = [{path.name for path in (r.folder / "checkpoints").iterdir()} for r in (run, other)]
    assert names[0] == names[1]
    assert set(run.info) == set(other.info) and run.info["best_step"] == other.info["best_step"]
    assert run.info["parameters"]["start"] == other.info["parameters"]["start"]
    assert {path.name for path in run.folder.iterdir()} == {path.name for path in other.folder.iterdir()}


def same_bytes(runs, others):
    for run, other in zip(runs, others, strict=True):
        assert (run.folder / "metrics.jsonl").read_bytes() == (other.folder / "metrics.jsonl").read_bytes()
        assert run.info["parameters"] == other.info["parameters"] and run.info["results"] == other.info["results"]


def opened(configs):
    return [Run.open(config.folder) for config in configs]


def test_runs_trained_together_equal_runs_alone(alone, together):
    for run, other in zip(together, alone, strict=True):
        assert_same(run, other)
    assert len({run.info["parameters"]["end"] for run in together}) == SEEDS


@pytest.mark.parametrize(
    ("mesh", "count"),
    [
        pytest.param(MeshOptions(), 8, id="one replica a device"),
        pytest.param(MeshOptions(), 6, id="replicas and rows", marks=pytest.mark.slow),
        pytest.param(MeshOptions(data=4, fsdp=2), 2, id="fsdp", marks=pytest.mark.slow),
        pytest.param(MeshOptions(data=4, tensor=2), 4, id="tensor", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_steps_together_equal_steps_alone_on_eight_devices(base, mesh, count, eight_devices):
    check_steps(dataclasses.replace(base, mesh=mesh), count, 3)


@pytest.fixture
def eight_devices(monkeypatch):
    monkeypatch.setattr(sharding, "make_mesh", MAKE_MESH)


def check_steps(config, count, number, tolerance=1e-5):
    """Trains `count` seeds by both ways for some steps and compares losses and parameters of each."""
    job = prepare(config)
    program = replicas.together(job.steps, job.mesh, count)
    jobs = [dataclasses.replace(job, config=own) for own in seeds(config, "steps", count)]
    states = [replicas._fresh(own) for own in jobs]
    stacked = program.stack([replicas._fresh(own) for own in jobs])
    iterators = [own.train_batches() for own in jobs]
    for _ in range(number):
        batches = [next(iterator) for iterator in iterators]
        stacked, values = program.train(stacked, program.put(batches))
        for i, batch in enumerate(batches):
            rows = {name: value for name, value in batch.items() if name != "index"}
            states[i], own = job.steps.train(states[i], sharding.put_batch(rows, job.mesh))
            assert float(values["loss"][i]) == pytest.approx(float(own["loss"]), abs=tolerance)
    for i, state in enumerate(states):
        taken = program.take(stacked, i)
        assert jax.tree.map(lambda x: x.sharding.spec, taken) == jax.tree.map(lambda x: x.sharding.spec, state)
        ours, theirs = flatten(taken.params), flatten(state.params)
        for path in set(ours) - {path for path in ours if path.endswith(NO_GRADIENT)}:
            np.testing.assert_allclose(ours[path], theirs[path], atol=1e-4, rtol=0, err_msg=path)
        for a, b in zip(jax.tree.leaves(taken.opt_state), jax.tree.leaves(state.opt_state), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-4, rtol=0)


OPTIONS = {"plain": OptimOptions(learning_rate=1e-3), "parts, skipping": OptimOptions(accumulate=2, max_skipped=1)}


@pytest.mark.slow
@pytest.mark.parametrize("optim", OPTIONS)
@pytest.mark.parametrize("count", [1, 8])
def test_fifty_steps(base, optim, count, monkeypatch):
    monkeypatch.setattr(sharding, "make_mesh", lambda options: MAKE_MESH(options, jax.devices()[:count]))
    train = dataclasses.replace(base.train, batch_size=16, steps=50)
    check_steps(dataclasses.replace(base, optim=OPTIONS[optim], train=train), 4, 50)


def test_a_signal_saves_all_and_the_same_command_continues(base, together):
    configs = seeds(base, "signal")
    with interrupted_after(12), pytest.raises(stopping.Interrupted):
        replicas.train(configs)
    saved = [sorted(int(p.name) for p in (c.folder / "checkpoints").iterdir() if p.name.isdigit()) for c in configs]
    assert saved[0] == saved[1] == saved[2] and 0 < max(saved[0]) < 10
    replicas.train(configs)
    same_bytes(opened(configs), together)


class interrupted_after:
    """SIGTERM comes at the n-th moment at which the program looks for signals."""

    def __init__(self, count):
        self.left, self.check = count, stopping.check

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        self.check()

    def __enter__(self):
        stopping.check = self

    def __exit__(self, *error):
        stopping.check = self.check


def test_replicas_at_different_steps_continue_from_a_common_one(base, together):
    configs = seeds(base, "uneven")
    with interrupted_after(30), pytest.raises(stopping.Interrupted):
        replicas.train(configs)
    folder = configs[1].folder / "checkpoints"
    assert max(int(path.name) for path in folder.iterdir() if path.name.isdigit()) == 8
    shutil.rmtree(folder / "8")
    with interrupted_after(3), pytest.raises(stopping.Interrupted):  # at step 6, while two of them still have step 8
        replicas.train(configs)
    assert {p.name for p in folder.iterdir() if p.name.isdigit()} >= {"4", "6"}
    replicas.train(configs)
    same_bytes(opened(configs), together)


def test_a_damaged_checkpoint_of_one_replica_is_set_aside(base, together, capsys):
    configs = seeds(base, "damaged")
    with interrupted_after(21), pytest.raises(stopping.Interrupted):
        replicas.train(configs)
    folder = configs[2].folder / "checkpoints"
    newest = max((int(path.name), path) for path in folder.iterdir() if path.name.isdigit())[1]
    for path in (newest / "state" / "d").iterdir():
        path.write_bytes(bytes(reversed(path.read_bytes())))
    assert replicas.train(configs) == {config.folder: None for config in configs}
    assert "is set aside" in capsys.readouterr().out
    same_bytes(opened(configs), together)


@pytest.mark.slow
def test_seeds_added_later_do_not_disturb_those_that_have_begun(base, together):
    configs = seeds(base, "more")
    with interrupted_after(12), pytest.raises(stopping.Interrupted):
        replicas.train(configs[:2])
    replicas.train(configs)
    for run, other in zip(opened(configs), together, strict=True):
        assert_same(run, other)


def test_a_replica_that_diverges_leaves_the_others_alone(base, together, monkeypatch):
    configs = seeds(base, "diverges")
    fresh = loop.opened

    def spoiled(job, at=None):
        if job.config.train.seed == 1:
            job.loaded = job.loaded | {
                "encoder/embeddings/word": np.full_like(job.loaded["encoder/embeddings/word"], np.nan)
            }
        return fresh(job, at)

    monkeypatch.setattr(loop, "opened", spoiled)
    ended = replicas.train(configs)
    assert isinstance(ended.pop(configs[1].folder), DivergedError) and set(ended.values()) == {None}
    runs = opened(configs)
    assert runs[1].info["status"] == "training"
    same_bytes([runs[0], runs[2]], [together[0], together[2]])


@pytest.mark.slow
def test_a_run_in_use_is_left_out(base, together):
    configs = seeds(base, "busy")
    with locks.exclusive(configs[0].folder / ".lock", "it"):
        ended = replicas.train(configs)
    assert isinstance(ended[configs[0].folder], InUseError) and not (configs[0].folder / "run.json").exists()
    for config, other in zip(configs[1:], together[1:], strict=True):
        assert_same(Run.open(config.folder), other)


def test_batches_of_several_lengths_are_refused(base):
    config = dataclasses.replace(base, data=dataclasses.replace(base.data, buckets=(4,)))
    with pytest.raises(InputError, match=r"padded to 4, 12.*--data\.buckets=12 --data\.max_length=12"):
        replicas.check(prepare(config))
    study = dataclasses.replace(StudyConfig.of(config), name="refused", study=StudyOptions(seeds=2, vectorize="seeds"))
    with pytest.raises(InputError, match=r"nothing was trained.*one length"):
        runner.run_study(study)
    assert not study.folder.exists()
    packed = dataclasses.replace(base, data=dataclasses.replace(base.data, packing="all"))
    with pytest.raises(InputError, match=r"differ in their number of rows.*--data\.packing=eval or none"):
        replicas.check(prepare(packed))


@pytest.mark.parametrize("ratio", [2.0, 1.05])
def test_a_study_takes_the_faster_way_and_keeps_to_it(base, alone, together, ratio, monkeypatch, capsys):
    study = dataclasses.replace(
        StudyConfig.of(base), name=f"study-{ratio}", study=StudyOptions(seeds=SEEDS, vectorize="seeds")
    )
    monkeypatch.setattr(replicas, "measure", lambda job, count: ratio)
    runner.run_study(study)
    assert ("trained together" in capsys.readouterr().out) == (ratio > replicas.MARGIN)
    same_bytes(opened(seeds(base, study.name)), together if ratio > replicas.MARGIN else alone)
    before = (study.folder / "study.csv").read_bytes()
    shutil.rmtree(seeds(base, study.name)[0].folder)
    shutil.rmtree(seeds(base, study.name)[1].folder)
    monkeypatch.setattr(replicas, "measure", lambda job, count: pytest.fail("measured again"))
    runner.run_study(study)
    assert all(outcome(member).status == "done" for member in members(study))
    assert (study.folder / "study.csv").read_bytes().split(b",")[0] == before.split(b",")[0]


def test_the_measured_ratio_is_one_of_times(base, monkeypatch):
    job = prepare(base)
    clock = iter(range(1000))
    monkeypatch.setattr(replicas.time, "perf_counter", lambda: float(next(clock)))
    assert replicas.measure(job, 2) == pytest.approx(2.0)


def test_stacking_keeps_every_bit(base):
    job = prepare(base)
    program = replicas.together(job.steps, job.mesh, 2)
    states = [job.steps.init(jnp.uint32(seed), {}) for seed in (0, 1)]
    stacked = program.stack(states)
    for i, state in enumerate(states):
        for a, b in zip(jax.tree.leaves(program.take(stacked, i)), jax.tree.leaves(state), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
