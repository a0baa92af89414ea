"""A run's folder: what is in it, and how to get its model, parameters and data back.

config.json   the resolved configuration
run.json      architecture, labels, versions, devices, hashes, results
tokenizer/    the tokenizer the run used
metrics.jsonl, timing.jsonl, tensorboard/, checkpoints/, snapshots/, landscape/, figures/
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import paths
from bertjax.config import RunConfig, from_json
from bertjax.data.features import Splits, load_splits
from bertjax.data.tokens import tokenizer_state
from bertjax.errors import InputError, option_names
from bertjax.model.bert import Numerics
from bertjax.model.config import BertConfig
from bertjax.model.heads import TaskModel
from bertjax.training import sharding
from bertjax.training.checkpoint import Snapshots, checkpoint_params, checkpoint_steps
from bertjax.training.steps import init_params, make_steps
from bertjax.tree import flatten
from bertjax.weights import load_tokenizer

PACKAGES = (
    "bertjax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "transformers",
    "tokenizers",
    "grain",
    "numpy",
)


# What run.json holds from the start of training on.
REQUIRED = (
    "status",
    "head",
    "labels",
    "architecture",
    "fresh",
    "steps",
    "parameters",
    "data",
    "tokenizer",
    "tokenizer_files",
)


def numerics(config: RunConfig) -> Numerics:
    """How the run's model is computed."""
    m = config.model
    return Numerics(
        dtype=jnp.dtype(m.dtype),
        param_dtype=jnp.dtype(m.param_dtype),
        unroll=m.unroll,
        remat=m.remat,
        activation_spec=sharding.ACTIVATIONS,
    )


def build_model(config: RunConfig, architecture: BertConfig, outputs: int) -> TaskModel:
    """The task model of a run."""
    m = config.model
    return TaskModel(
        architecture.with_dropout(m.hidden_dropout, m.attention_dropout),
        outputs,
        numerics(config),
        m.fusion,
        m.cls_norm,
    )


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def parameter_hash(params: Any) -> str:
    """SHA-256 over names, types, shapes and bytes of all parameters."""
    digest = hashlib.sha256()
    for path, leaf in sorted(flatten(params).items()):
        value = np.asarray(leaf)
        digest.update(f"{path} {value.dtype} {value.shape}\n".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of all that decides how texts become word pieces: vocabulary, lower-casing, special tokens and so on."""
    return hashlib.sha256(json.dumps(tokenizer_state(tokenizer), sort_keys=True).encode()).hexdigest()


def files_hash(folder: Path) -> str:
    """SHA-256 over names and bytes of the files in a folder."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(f"{file.name}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished or running training run, opened for reading."""

    folder: Path
    config: RunConfig
    info: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """Opens a run's folder; InputError if it is none."""
        folder = Path(folder).expanduser()
        if not (folder / "run.json").is_file():
            raise InputError(f"{folder} is not a run: it has no run.json (a run is made by: python train.py CONFIG)")
        try:
            info = json.loads((folder / "run.json").read_text())
        except ValueError as error:
            raise InputError(f"{folder / 'run.json'} is damaged: {error}") from None
        absent = [key for key in REQUIRED if not isinstance(info, dict) or key not in info]
        if absent:
            raise InputError(f"{folder / 'run.json'} is damaged: it does not say {', '.join(absent)}")
        return cls(folder, from_json(RunConfig, folder / "config.json"), info)

    def write(self) -> None:
        """Writes run.json."""
        paths.write_json(self.folder / "run.json", self.info)

    @property
    def head(self) -> str:
        """Name of the head (a key of HEADS)."""
        return self.info["head"]

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in class order; empty for regression."""
        return tuple(self.info["labels"])

    @functools.cached_property
    def model(self) -> TaskModel:
        """The task model."""
        return build_model(self.config, BertConfig(**self.info["architecture"]), max(1, len(self.labels)))

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer the run used; InputError if it is missing or has changed since."""
        folder = self.folder / "tokenizer"
        tokenizer = load_tokenizer(folder)
        if files_hash(folder) != self.info["tokenizer_files"]:
            raise InputError(f"{folder} is not the tokenizer this run was trained with: its files have changed since")
        return tokenizer

    @functools.cached_property
    def splits(self) -> Splits:
        """The run's data, tokenized with the run's own tokenizer; InputError if the files have changed since."""
        with option_names({}, str(self.folder / "config.json")):
            splits = load_splits(
                self.config.data,
                self.tokenizer,
                labels=self.labels or None,
                positions=self.model.config.max_position_embeddings,
            )
        then, now = self.info["data"], splits.fingerprints
        if changed := [path for path in then | now if then.get(path) != now.get(path)]:
            raise InputError(
                f"{self.folder} was trained on other rows: {', '.join(changed)} "
                f"{'has' if len(changed) == 1 else 'have'} changed since (the SHA-256 in run.json is another); "
                "restore what was there"
            )
        return splits

    @property
    def snapshot_steps(self) -> list[int]:
        """Steps at which parameters were kept."""
        snapshots = Snapshots(self.folder / "snapshots")
        steps = snapshots.steps
        snapshots.close()
        return steps

    def params(self, step: int, mesh: Any = None) -> Any:
        """The parameters at a step, laid over `mesh` by the table of training/sharding.py (None: first device)."""
        shapes = jax.eval_shape(functools.partial(init_params, self.model), jax.random.key(0))
        if mesh is None:
            whole = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            shardings = jax.tree.map(lambda _: whole, shapes)
        else:
            shardings = sharding.parameter_shardings(shapes, mesh)
        abstract = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
        snapshots = Snapshots(self.folder / "snapshots")
        params = snapshots.load(step, abstract)
        snapshots.close()
        end = {0: "start", self.info["steps"]: "end"}.get(step, "")
        expected = self.info["parameters"].get(end)
        if expected is not None and parameter_hash(params) != expected:
            raise InputError(
                f"snapshot {self.folder / 'snapshots' / str(step)} is not the {end} of this run: run.json has another "
                "hash of its parameters"
            )
        return params

    def params_at(self, checkpoint: str, mesh: Any) -> tuple[int, Any]:
        """Step and parameters of a checkpoint or snapshot.

        Args:
          checkpoint: "last", "best" (by the dev score), or a step.
          mesh: devices over which the parameters are laid.

        Raises:
          InputError: there is no such checkpoint; the steps that there are are listed.
        """
        snapshots, checkpoints = self.snapshot_steps, checkpoint_steps(self.folder / "checkpoints")
        known = sorted({*snapshots, *checkpoints})
        named = {"last": known[-1] if known else None, "best": self.info.get("best_step")}
        step = int(checkpoint) if checkpoint.isdecimal() else named.get(checkpoint)
        if step is None or step not in known:
            hint = " (best is known when training is done)" if checkpoint == "best" and step is None else ""
            raise InputError(
                f"--checkpoint {checkpoint}: {self.folder} has none{hint}; expected last, best or a step of "
                f"{', '.join(map(str, known)) or 'none'}"
            )
        if step in snapshots:
            return step, self.params(step, mesh)
        steps = make_steps(self.model, self.head, self.config.optim, self.info["steps"], mesh)
        return step, checkpoint_params(self.folder / "checkpoints", step, steps.abstract)

    def ends(self) -> tuple[int, int]:
        """Steps of the first and the last snapshot (θ₀ and θ₁); InputError if training has not finished."""
        if self.info["status"] != "done":
            raise InputError(
                f"{self.folder}: training has not finished (status {self.info['status']!r}); "
                "run the same train command again to continue it"
            )
        wanted, steps = (0, self.info["steps"]), self.snapshot_steps
        if lost := [step for step in wanted if step not in steps]:
            raise InputError(
                f"{self.folder / 'snapshots'} has lost step {' and '.join(map(str, lost))}: there are "
                f"{', '.join(map(str, steps)) or 'none'}; the start and the end of training are needed"
            )
        return wanted
