"""Rows of TFDS data sets by number, through the reader of `tfds.data_source` (array_record), without TensorFlow.

A data set that is prepared in the data folder is read without the code that built it. Otherwise TFDS's own builder of
that name, or one that a config file defines, prepares it.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from bertjax.config import nearest
from bertjax.data import folders
from bertjax.data.records import Record, decoded
from bertjax.errors import InputError, first_line

_ADDRESS = re.compile(r"tfds://(?P<name>\w+)(/(?P<config>[\w.+-]+))?(:(?P<version>\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_ROWS = 1000  # rows read in one call


class TfdsPart:
    """One split of a data set as rows by number; see `records.Part`.

    Args:
      address: ``tfds://NAME[/CONFIG][:VERSION]``.
      split: name of a split or an expression of TFDS such as ``train[:10%]``; empty: `preferred`, or the only one.
      preferred: may be empty.
      option: the option that asks for a split, for messages.
      data_dir: folder of prepared data sets; empty: $TFDS_DATA_DIR, or ~/tensorflow_datasets.
    """

    open_ended = False

    def __init__(self, address: str, split: str, preferred: str, option: str, data_dir: str) -> None:
        builder = _builder(address, Path(data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")))
        info = self._info = builder.info
        expression = not re.fullmatch(r"\w*", split)
        if not expression:
            split = folders.choose(info.splits, split, preferred, address, option)
        try:
            self._rows: Sequence[Any] = builder.as_data_source(split)
        except (NotImplementedError, ValueError, KeyError) as error:
            if expression and _random_access(info):
                raise InputError(f"{option}={split}: {address} has no such split: {first_line(error)}") from None
            raise InputError(
                f"{address}: is prepared in {builder.data_dir} as {_format(info)}, which has no random access; "
                "expected array_record: prepare it by `tfds build --file_format=array_record` in another folder, and "
                "name that by --data.data_dir"
            ) from None
        self.path = f"{address} {split}"
        self.reading = ("tfds", split)
        self._split, self._folder = split, Path(builder.data_dir)
        self.columns = tuple(info.features)
        self.class_names = {
            column: tuple(feature.names)
            for column, feature in info.features.items()
            if isinstance(feature, tfds.features.ClassLabel)
        }

    def records(self, columns: tuple[str, ...]) -> Iterator[Record]:
        for start in range(0, len(self._rows), _ROWS):
            places = range(start, min(start + _ROWS, len(self._rows)))
            try:
                rows = self._rows.__getitems__(places)
            except Exception as error:  # array_record's errors have no type of their own
                raise InputError(f"{self.path}: is damaged after row {start}: {first_line(error)}") from None
            for place, row in zip(places, rows, strict=True):
                try:
                    yield Record(place, tuple(_plain(row[column]) for column in columns))
                except ValueError as error:
                    yield Record(place, None, f"a cell {error}")

    def where(self, place: int) -> str:
        return f"{self.path}: row {place}"

    def fingerprint(self) -> str:
        described = [self._folder / "dataset_info.json", self._folder / "features.json"]
        described += sorted(self._folder.glob("*.labels.txt"))
        shards = [Path(shard.filename) for shard in self._info.splits[self._split].file_instructions]
        total = hashlib.sha256(self._split.encode())
        for file in (*described, *shards):
            with file.open("rb") as raw:
                total.update(f"{file.name} {hashlib.file_digest(raw, 'sha256').hexdigest()}\n".encode())
        return total.hexdigest()


def _builder(address: str, data_dir: Path) -> Any:
    """A builder whose data set is prepared."""
    parsed = _ADDRESS.fullmatch(address)
    if parsed is None:
        raise InputError(
            f"{address}: expected tfds://NAME[/CONFIG][:VERSION], for example tfds://glue/sst2:2.0.0 (the split is "
            "named by --data.train_split or --data.dev_split)"
        )
    name, config, version = parsed["name"], parsed["config"], parsed["version"]
    data_dir = data_dir.expanduser()
    folder = _prepared(address, data_dir / name, config, version)
    if folder is not None:
        try:
            return tfds.builder_from_directory(str(folder))
        except Exception as error:
            raise InputError(f"{address}: the data set in {folder} cannot be read: {first_line(error)}") from None
    full = f"{name}/{config}" if config else name
    module = f"tensorflow_datasets.text.{name}"  # GLUE and others are registered by their module alone
    try:
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
        builder = tfds.builder(full + (f":{version}" if version else ""), data_dir=str(data_dir))
    except Exception as error:
        raise _missing(
            address, full, data_dir, f"TFDS has no builder for it: {first_line(error).rstrip('.')}"
        ) from None
    if not builder.data_path.exists():
        no_copies = tfds.download.DownloadConfig(try_download_gcs=False)  # those that TFDS hosts are no array_record
        try:
            with _few_attempts():
                builder.download_and_prepare(file_format="array_record", download_config=no_copies)
        except Exception as error:
            reason = f"preparing it failed: {type(error).__name__}: {first_line(error)}"
            raise _missing(address, full, data_dir, reason) from None
    return builder


@contextlib.contextmanager
def _few_attempts() -> Iterator[None]:
    """Lets a download fail after seconds: TFDS tries 10 times over 3 minutes, silently, where there is no network."""
    from tensorflow_datasets.core.download import downloader

    before = downloader.MAX_RETRIES
    downloader.MAX_RETRIES = 3
    try:
        yield
    finally:
        downloader.MAX_RETRIES = before


def _prepared(address: str, folder: Path, config: str | None, version: str | None) -> Path | None:
    """The folder of a prepared version, the highest unless one is asked for; None: there is none."""
    versions = _versions(folder / config if config else folder)
    if not versions and not config and folder.is_dir():
        configs = [sub for sub in sorted(folder.iterdir()) if sub.is_dir() and _versions(sub)]
        if len(configs) > 1:
            names = ", ".join(sub.name for sub in configs)
            raise InputError(
                f"{address}: is prepared in several configurations, expected {address}/ and one of: {names}"
            )
        versions = _versions(configs[0]) if configs else []
    if version:
        return next((found for found in versions if found.name == version), None)
    return versions[-1] if versions else None


def _versions(folder: Path) -> list[Path]:
    found = [
        sub
        for sub in (folder.iterdir() if folder.is_dir() else ())
        if _VERSION.fullmatch(sub.name) and (sub / "dataset_info.json").exists()
    ]
    return sorted(found, key=lambda sub: tuple(map(int, sub.name.split("."))))


def _missing(address: str, full: str, data_dir: Path, reason: str) -> InputError:
    there = sorted(sub.name for sub in data_dir.iterdir() if sub.is_dir()) if data_dir.is_dir() else []
    there = [name for name in there if name != "downloads" and any((data_dir / name).rglob("dataset_info.json"))]
    hint = nearest(full.partition("/")[0], there) if there else "; nothing is"
    return InputError(
        f"{address}: is not prepared in {data_dir}{hint}, and {reason}. Three ways to provide it: (1) where there is a "
        f"network, `tfds build {full} --file_format=array_record`, and copy ~/tensorflow_datasets/{full} to "
        f"{data_dir / full}; (2) name the folder that has it by --data.data_dir or TFDS_DATA_DIR, or define its "
        "builder in the config file; (3) give the rows as a file: .csv, .tsv, .jsonl or .parquet"
    )


def _random_access(info: Any) -> bool:
    formats = {fmt.value for fmt in info.available_file_formats()}
    return bool(formats & {"array_record", "parquet"})


def _format(info: Any) -> str:
    return ", ".join(sorted(fmt.value for fmt in info.available_file_formats())) or "an unknown format"


@functools.singledispatch
def _plain(value: Any) -> Any:
    """A value of TFDS as plain Python; ValueError if it is text that is not UTF-8."""
    return value


@_plain.register
def _(value: bytes) -> str:
    return decoded(value)


@_plain.register
def _(value: np.generic) -> Any:
    return value.item()


@_plain.register
def _(value: np.ndarray) -> Any:
    return _plain(value[()]) if value.ndim == 0 else value.tolist()
