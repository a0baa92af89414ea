"""Folders that hold a data set as files, one or several for each split, as the Hugging Face hub lays them out.

A file's split is the start of its name (`train-00000-of-00002.parquet`, `test.csv`) or its folder
(`train/0000.parquet`), unless the `configs` of the folder's README.md say it.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertjax.errors import InputError

ALIASES = ({"train", "training"}, {"validation", "valid", "val", "dev"}, {"test", "testing", "eval"})
"""Names of splits that mean the same, also as the first word of a longer name (dev_matched, validation_matched)."""

_SHARD = re.compile(r"(?P<split>.+?)-\d{5}-of-\d{5}(-[0-9a-f]+)?")


def split_files(folder: Path, path: str, endings: Iterable[str]) -> dict[str, list[Path]]:
    """The files of each split of a folder, sorted by name.

    Args:
      folder: the data set.
      path: the folder as messages show it.
      endings: endings of data files; Parquet files, where there are any, are the data set and others are not.

    Raises:
      InputError: there are no data files, or there are several data sets ("configurations").
    """
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.name.lower().endswith(tuple(endings))
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    parquet = [file for file in files if file.suffix.lower() == ".parquet"]
    # What stands beside the rows of a data set, as its licence, has these endings too.
    rows = [file for file in files if file.suffix.lower() not in (".txt", ".json")]
    files = parquet or rows or files
    if not files:
        saved = any(folder.rglob("*.arrow"))
        hint = "; it was written by save_to_disk: write it by to_parquet" if saved else ""
        raise InputError(f"{path}: is a folder without data files, expected files ending in {', '.join(endings)}{hint}")
    stems = {file: file.name[: -max(len(e) for e in endings if file.name.lower().endswith(e))] for file in files}
    found = _declared(folder, path) or _by_name(folder, path, stems)
    return {split: sorted(set(of_split)) for split, of_split in found.items()}


def class_names(folder: Path) -> dict[str, tuple[str, ...]]:
    """Class names of columns from the `dataset_info` of the README.md in the folder or the one above it."""
    for card in (folder, folder.parent):
        info = _card(card).get("dataset_info")
        if info is None:
            continue
        infos = [item for item in (info if isinstance(info, list) else [info]) if isinstance(item, dict)]
        if len(infos) > 1:
            infos = [item for item in infos if item.get("config_name") == folder.name]
        return {name: names for item in infos for name, names in _labels(item.get("features"))}
    return {}


def choose(splits: Iterable[str], wanted: str, preferred: str, path: str, option: str) -> str:
    """The name under which a split is there.

    Args:
      splits: the names that there are.
      wanted: the name asked for; empty: `preferred`, or the only one there is.
      preferred: may be empty: none is.
      path: the data set as messages show it.
      option: the option that asks for a split.

    Raises:
      InputError: there is no such split, or one must be asked for.
    """
    splits = tuple(splits)
    name = wanted or preferred
    found = [name] if name in splits else [split for split in splits if name and _common(split) == _common(name)]
    if len(found) == 1:
        return found[0]
    if not wanted and len(splits) == 1:
        return splits[0]
    asked = f"no split {name!r}" if name else "several splits"
    raise InputError(f"{path}: has {asked}, expected {option} to name one of: {', '.join(splits)}")


def _common(split: str) -> str:
    """A split's name with its first word in the form that all its aliases share."""
    first, mark, rest = split.partition("_")
    return next((min(group) for group in ALIASES if first in group), first) + mark + rest


def _by_name(folder: Path, path: str, stems: dict[Path, str]) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    homes: dict[str, set[str]] = {}
    known = set().union(*ALIASES)
    for file, stem in stems.items():
        above = list(file.relative_to(folder).parts[:-1])
        shard = _SHARD.fullmatch(stem)
        if not shard and above and (above[-1] in known or stem.isdigit()):
            split = above.pop()
        else:
            split = shard["split"] if shard else stem
        homes.setdefault("/".join(above), set()).add(split)
        found.setdefault(split, []).append(file)
    if len(homes) > 1:
        names = sorted(homes)
        raise InputError(
            f"{path}: holds {len(names)} data sets, in {', '.join(name or '.' for name in names[:20])}; expected the "
            f"folder of one, for example {path.rstrip('/')}/{names[-1]}"
        )
    return found


def _declared(folder: Path, path: str) -> dict[str, list[Path]]:
    """Split -> files as `configs` in the README.md says; empty where it says nothing."""
    configs = [c for c in _card(folder).get("configs") or [] if isinstance(c, dict) and c.get("data_files")]
    if not configs:
        return {}
    if len(configs) > 1:
        folders = sorted({_patterns(c["data_files"])[0][1].rpartition("/")[0] or "." for c in configs})
        if len(folders) < 2:
            return {}
        raise InputError(
            f"{path}: holds {len(configs)} data sets ({', '.join(str(c.get('config_name')) for c in configs[:20])}), "
            f"expected the folder of one, for example {path.rstrip('/')}/{folders[0]}"
        )
    found: dict[str, list[Path]] = {}
    for split, pattern in _patterns(configs[0]["data_files"]):
        files = [file for file in folder.glob(pattern) if file.is_file()]
        if not files:
            raise InputError(f"{path}: has no file {pattern}, which README.md names for the split {split}")
        found.setdefault(split, []).extend(files)
    return found


def _patterns(data_files: Any) -> list[tuple[str, str]]:
    """(split, pattern) pairs of a `data_files` entry: a text, a list of texts, or a list of {split, path}."""
    pairs = []
    for item in data_files if isinstance(data_files, list) else [data_files]:
        split, patterns = (item.get("split"), item.get("path")) if isinstance(item, dict) else ("train", item)
        pairs += [(str(split), str(p).lstrip("/")) for p in (patterns if isinstance(patterns, list) else [patterns])]
    return pairs


def _card(folder: Path) -> dict[str, Any]:
    """The YAML block at the top of README.md; empty where there is none that can be read."""
    import yaml

    try:
        text = (folder / "README.md").read_text("utf-8-sig")
        block = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
        card = yaml.safe_load(block[1]) if block else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return card if isinstance(card, dict) else {}


def _labels(features: Any) -> list[tuple[str, tuple[str, ...]]]:
    """(column, class names) pairs of a `features` list: {name, dtype: {class_label: {names: {'0': ...}}}}."""
    found = []
    for feature in features if isinstance(features, list) else []:
        try:
            names = feature["dtype"]["class_label"]["names"]
            ordered = [names[key] for key in sorted(names, key=int)] if isinstance(names, dict) else names
            found.append((str(feature["name"]), tuple(map(str, ordered))))
        except (KeyError, TypeError, ValueError):
            continue
    return found
