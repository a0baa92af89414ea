"""Rows of anything that a path can name: text files, Parquet, data-set folders, several files, TFDS data sets.

A source is one or several parts (files, or the split of a data set) with the same columns, read in order.
"""

import functools
import glob
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from bertjax import paths
from bertjax.config import nearest
from bertjax.data import folders
from bertjax.data.json_file import JsonPart
from bertjax.data.parquet import ParquetPart
from bertjax.data.records import Part, Reading, Record
from bertjax.data.text_files import COMPRESSIONS, FORMATS, TextPart
from bertjax.errors import InputError

TFDS = "tfds://"
ENDINGS = (*FORMATS, ".json", ".parquet")
_ALL_ENDINGS = (*ENDINGS, *(f"{text}{packed}" for text in FORMATS for packed in COMPRESSIONS))

PLAIN = Reading()
"""A header line where the format has one, UTF-8."""

Role = Literal["train", "dev", "data"]
PREFERRED: dict[Role, str] = {"train": "train", "dev": "validation", "data": ""}
"""What rows are for -> the split that is read unless told."""


class Source:
    """Rows of one or several parts in order.

    Attributes:
      path: what the user gave, for messages.
      parts: where the rows are.
      columns: column names in the order of the first part.
      class_names: column -> names of the classes for which its integers stand; other columns are left out.
    """

    def __init__(self, path: str, parts: Sequence[Part]) -> None:
        self.path, self.parts = path, tuple(parts)
        first = self.parts[0]
        for part in self.parts[1:]:
            if not (first.open_ended or part.open_ended) and set(part.columns) != set(first.columns):
                raise InputError(
                    f"{part.path}: has the columns {', '.join(part.columns)}, expected those of {first.path}: "
                    f"{', '.join(first.columns)}"
                )
            for column in first.class_names.keys() | part.class_names.keys():
                names = [p.class_names.get(column, ()) for p in (first, part)]
                if names[0] != names[1]:
                    raise InputError(
                        f"{part.path}: column {column!r} has the classes {', '.join(names[1]) or 'of no names'}, "
                        f"expected those of {first.path}: {', '.join(names[0]) or 'no names'}"
                    )
        self.columns = tuple(dict.fromkeys(name for part in self.parts for name in part.columns))
        self.class_names = dict(first.class_names)

    def records(self, columns: Sequence[str]) -> Iterator[tuple[int, Record]]:
        """All rows with the values of some columns, each with the number of its part; malformed ones too.

        Raises:
          InputError: a part has no rows, or is damaged.
        """
        for number, part in enumerate(self.parts):
            record = None
            for record in part.records(tuple(columns)):
                yield number, record
            if record is None:
                headed = part.reading[0] in FORMATS and not part.open_ended and len(part.reading) == 3
                raise InputError(f"{part.path}: has no rows{' after its header line' if headed else ''}")

    def where(self, part: int, place: int) -> str:
        """The place of a row for messages: `path:line`, or `path: row N` where there are no lines."""
        return self.parts[part].where(place)

    @property
    def reading(self) -> tuple[str, ...]:
        """What the contents of texts depend on besides the bytes and the chosen columns."""
        return tuple(item for part in self.parts for item in part.reading)

    @functools.cached_property
    def fingerprints(self) -> dict[str, str]:
        """Hexadecimal SHA-256 of each part, by its path."""
        return {part.path: part.fingerprint() for part in self.parts}

    @property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of all parts in their order; that of the part where there is one."""
        digests = [self.fingerprints[part.path] for part in self.parts]
        return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def open_source(
    path: str | Sequence[str], reading: Reading = PLAIN, *, split: str = "", role: Role = "data", data_dir: str = ""
) -> Source:
    """Opens what a path names; column names are read, rows are not.

    Args:
      path: a file whose ending is in `ENDINGS` (text files may be compressed: `COMPRESSIONS`), a pattern with `*`, `?`
        or `[...]`, a folder that holds a data set, `package://MODULE/...`, `tfds://NAME[/CONFIG][:VERSION]`, or several
        of these. Messages show it as given.
      reading: how text files are read.
      split: of a folder or tfds:// address; empty: `PREFERRED[role]`, or the only one.
      role: what the rows are for.
      data_dir: folder of prepared TFDS data sets; empty: TFDS's own.

    Raises:
      InputError: something is missing, empty, undecodable or malformed; the message names it.
    """
    given = (path,) if isinstance(path, str) else tuple(path)
    if not given or not all(given):
        raise InputError(f"expected a file, a folder or an address, got {path!r}")
    option = "--split" if role == "data" else f"--data.{role}_split"
    parts: list[Part] = []
    for one in given:
        parts += _parts(one, reading, split, role, option, data_dir)
    seen: set[str] = set()
    for part in parts:
        if part.path in seen:
            raise InputError(f"{part.path}: is given twice")
        seen.add(part.path)
    return Source(shown(path), parts)


def has_splits(path: str | Sequence[str]) -> bool:
    """Whether a path names a data set with splits: a folder or a tfds:// address."""
    return isinstance(path, str) and (path.startswith(TFDS) or paths.resolve(path).is_dir())


def shown(path: str | Sequence[str]) -> str:
    """A path, or several, as one text for messages."""
    return path if isinstance(path, str) else " ".join(path)


def _parts(path: str, reading: Reading, split: str, role: Role, option: str, data_dir: str) -> list[Part]:
    if path.startswith(TFDS):
        from bertjax.data.tfds import TfdsPart  # imports tensorflow_datasets

        return [TfdsPart(path, split, PREFERRED[role], option, data_dir)]
    file = paths.resolve(path)
    if file.is_dir():
        found = folders.split_files(file, path, _ALL_ENDINGS)
        name = folders.choose(found, split, PREFERRED[role], path, option)
        names = folders.class_names(file)
        return [_part(f, f"{path.rstrip('/')}/{f.relative_to(file)}", reading, names) for f in found[name]]
    if split:
        raise InputError(f"{option}={split}: {path} is no folder and no tfds:// address, and has no splits")
    if file.exists() or not glob.has_magic(path):
        return [_part(file, path, reading, {})]
    # Path.glob would need the pattern apart from the folder, and Python 3.11's has no case for `**` at the end.
    matches = sorted(Path(match) for match in glob.glob(str(file), recursive=True))  # noqa: PTH207
    matches = [match for match in matches if match.is_file()]
    if not matches:
        raise InputError(f"{path}: no file matches this pattern")
    return [_part(match, _as_given(match, file, path), reading, {}) for match in matches]


def _as_given(match: Path, pattern: Path, path: str) -> str:
    """A file that a pattern matches, spelled as the pattern begins."""
    fixed = next(i for i, part in enumerate(pattern.parts) if glob.has_magic(part))
    depth = len(pattern.parts) - fixed
    begin = path.rsplit("/", depth)[0] + "/" if path.count("/") >= depth else ""
    return begin + "/".join(match.parts[fixed:])


def _part(file: Path, path: str, reading: Reading, class_names: dict[str, tuple[str, ...]]) -> Part:
    name = file.name.lower()
    if not name.endswith(_ALL_ENDINGS):
        ending = f"the ending {file.suffix!r}" if file.suffix else "no ending"
        raise InputError(
            f"{path}: has {ending}, expected one of {', '.join(ENDINGS)}; text may be compressed "
            f"({', '.join(COMPRESSIONS)})"
        )
    if not file.exists():
        siblings = []
        if file.parent.is_dir():
            siblings = [p.name for p in sorted(file.parent.iterdir()) if p.name.lower().endswith(_ALL_ENDINGS)]
        raise InputError(f"{path}: does not exist{nearest(file.name, siblings[:20]) if siblings else ''}")
    if name.endswith(".parquet"):
        return ParquetPart(file, path, class_names)
    if name.endswith(".json"):
        return JsonPart(file, path)
    part = TextPart(file, path, reading)
    part.class_names = {column: names for column, names in class_names.items() if column in part.columns}
    return part
