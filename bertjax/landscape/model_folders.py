"""Hugging Face model folders: their parameters and hashes, a Trainer's checkpoints, the model of another task."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bertjax import weights
from bertjax.errors import InputError
from bertjax.landscape.subject import RunSubject
from bertjax.progress import say
from bertjax.run import Run
from bertjax.tree import flatten, unflatten

Tree = Any

CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclasses.dataclass(frozen=True)
class ModelFolder:
    """One Hugging Face model folder."""

    folder: Path

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over config.json and weights."""
        digest = hashlib.sha256()
        for file in (self.folder / "config.json", *weight_files(self.folder)):
            if not file.is_file():
                raise InputError(f"{file} does not exist: expected a Hugging Face model folder")
            digest.update(f"{file.name}\n".encode())
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    def load(self) -> dict[str, np.ndarray]:
        """Its parameters by path, float32."""
        _, tree, _ = weights.load(self.folder)
        return {path: np.asarray(x, np.float32) for path, x in flatten(tree).items()}


@dataclasses.dataclass(frozen=True)
class Other:
    """The model of another task."""

    name: str
    digest: str
    load: Callable[[], tuple[Tree | None, Tree]]
    """Its start, None where it is not known, and its end."""


def open_other(path: str) -> Other:
    """The run or the model folder at `path`; InputError if it is neither."""
    folder = Path(path).expanduser()
    if (folder / "run.json").is_file():
        run = RunSubject(Run.open(folder))
        return Other(run.name, run.identity["parameters"]["end"], lambda: (run.start, run.end))
    if folder.is_dir() and not (folder / "config.json").is_file() and not checkpoints(folder):
        raise InputError(f"{path} is neither a run (run.json) nor a model folder (config.json)")
    model = ModelFolder(end_folder(weights.model_folder(path)))
    return Other(path, model.digest, lambda: (None, unflatten(model.load())))


def weight_files(folder: Path) -> list[Path]:
    """The weights of a model folder; model.safetensors where there are none, so that an error can name it."""
    return sorted(folder.glob("model*.safetensors")) or [folder / "model.safetensors"]


def checkpoints(folder: Path) -> dict[int, Path]:
    """A Trainer's checkpoints by number, ascending; one without weights, of a Trainer that was killed, is left out."""
    found = {}
    for path in folder.iterdir():
        number = CHECKPOINT.fullmatch(path.name)
        if number and path.is_dir():
            if weight_files(path)[0].is_file():
                found[int(number[1])] = path
            else:
                say(f"left out {path}: it has no weights")
    return dict(sorted(found.items()))


def end_folder(folder: Path) -> Path:
    """The folder itself where it holds weights, else its last checkpoint."""
    if not weight_files(folder)[0].is_file():
        return next(iter(reversed(checkpoints(folder).values())), folder)
    return folder
