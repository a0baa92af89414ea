"""Studies: every combination of the values of some options, each with several seeds.

A study is a run's configuration with one section more. What it trains are plain runs, one folder each:
RUNS/NAME/AXIS=VALUE,.../seed-N.
"""

import dataclasses
import functools
import hashlib
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from bertjax.config import RunConfig, nearest
from bertjax.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What is varied, and how the runs are shared out."""

    seeds: int = 1
    """Runs of each combination: train.seed, train.seed + 1 and so on. Everything else, data.split_seed included, is
    equal in them, so that combinations can be compared seed by seed."""
    axis: tuple[str, ...] = ()
    """Options to vary, as OPTION=VALUE,VALUE,... with spaces between options; the first value is the one that others
    are compared with. A value of several parts is written (16,32)."""
    jobs: int | Literal["slurm"] = 1
    """Processes among which the runs are shared out, each with its own --study.job. slurm: both numbers are those of
    the Slurm job array that the process belongs to."""
    job: int = 0
    """Which of them this one is, from 0."""
    vectorize: Literal["none", "seeds"] = "none"
    """seeds: the seeds of a combination are trained in one program, in lockstep. Needs batches of one length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(RunConfig):
    """Everything that decides a study: the configuration that its runs have in common, and what differs."""

    study: StudyOptions = StudyOptions()

    @classmethod
    def of(cls, config: RunConfig) -> "StudyConfig":
        """A study of the one run that `config` describes."""
        return config if isinstance(config, cls) else cls(**_fields(config))


@dataclasses.dataclass(frozen=True)
class Axis:
    """One option and the values it takes."""

    option: str
    """As section.field."""
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    """The values as they were written."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of a study."""

    config: RunConfig
    combination: tuple[str, ...]
    """The text of each axis' value."""
    label: str
    """The combination in short, as AXIS=VALUE,...; "all runs" where nothing is varied."""
    seed: int


def axes(options: StudyOptions) -> tuple[Axis, ...]:
    """The axes of a study.

    Raises:
      InputError: an unknown option, one that cannot be varied, an option or value given twice, or a value that is not
        of the option's type; all are listed.
    """
    found, problems = [], []
    for text in options.axis:
        try:
            found.append(_axis(text))
        except InputError as error:
            problems.append(str(error))
    names = [axis.option for axis in found]
    problems += [f"--study.axis: {name} is given twice" for name in sorted({n for n in names if names.count(n) > 1})]
    if problems:
        raise InputError("; ".join(problems))
    return tuple(found)


def members(config: StudyConfig) -> list[Member]:
    """All runs of a study, combination by combination, each with its seeds.

    Raises:
      InputError: anything wrong with the axes or the number of seeds.
    """
    study, first = config.study, config.train.seed
    if study.seeds < 1 or not 0 <= first <= 2**32 - study.seeds:
        raise InputError(
            f"--study.seeds={study.seeds} from --train.seed={first}: expected at least 1 seed, all from 0 to 2**32 - 1"
        )
    varied = axes(study)
    base = RunConfig(**{name: value for name, value in _fields(config).items() if name != "study"})
    names = _short([axis.option for axis in varied])
    found = []
    for choice in itertools.product(*(range(len(axis.values)) for axis in varied)):
        changed = base
        for axis, index in zip(varied, choice, strict=True):
            changed = _changed(changed, axis.option, axis.values[index])
        texts = tuple(axis.texts[index] for axis, index in zip(varied, choice, strict=True))
        folder = Path(config.name, _folder([f"{name}={text}" for name, text in zip(names, texts, strict=True)]))
        label = ", ".join(f"{name}={text}" for name, text in zip(names, texts, strict=True)) or "all runs"
        for seed in range(first, first + study.seeds):
            run = dataclasses.replace(changed, name=str(folder / f"seed-{seed}"))
            found.append(Member(_changed(run, "train.seed", seed), texts, label, seed))
    return found


def _fields(config: RunConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _changed(config: RunConfig, option: str, value: Any) -> RunConfig:
    section, _, field = option.partition(".")
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{field: value})})


@functools.cache
def _options() -> dict[str, Any]:
    """Option -> type, of all that can be varied."""
    hints = typing.get_type_hints(RunConfig)
    return {
        f"{section}.{field}": hint
        for section, cls in hints.items()
        if dataclasses.is_dataclass(cls)
        for field, hint in typing.get_type_hints(cls).items()
    }


def _axis(text: str) -> Axis:
    option, equals, values = text.partition("=")
    where = f"--study.axis {option}"
    if not equals:
        raise InputError(f"--study.axis: expected OPTION=VALUE,VALUE,... got {text!r}")
    if option not in _options():
        raise InputError(f"{where}: there is no such option{nearest(option, _options())}")
    if option == "train.seed":
        raise InputError(f"{where}: seeds are counted from --train.seed by --study.seeds, they cannot be an axis")
    texts = tuple(part.strip() for part in _split(values))
    twice = sorted({part for part in texts if texts.count(part) > 1})
    if twice:
        raise InputError(f"{where}: the value {twice[0]} is given twice")
    parsed = []
    for part in texts:
        try:
            parsed.append(_parse(part, _options()[option]))
        except ValueError:
            raise InputError(f"{where}: {part!r} is no {_spoken(_options()[option])}") from None
    for index, value in enumerate(parsed):
        if value in parsed[:index]:
            raise InputError(f"{where}: {texts[parsed.index(value)]} and {texts[index]} are the same value")
    return Axis(option, tuple(parsed), texts)


def _split(text: str) -> Iterator[str]:
    """The parts between commas that stand outside of brackets."""
    depth, part = 0, ""
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    yield part


def _parse(text: str, hint: Any) -> Any:
    """The value of a type that a text stands for; ValueError if it stands for none."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {str(value): value for value in args}[text] if text in map(str, args) else _refuse(text)
    if origin in (typing.Union, types.UnionType):
        for arg in sorted(args, key=lambda arg: arg is str):  # anything is a text: try the narrower types first
            try:
                return _parse(text, arg)
            except ValueError:
                continue
        return _refuse(text)
    if origin is tuple:
        if not (text.startswith("(") and text.endswith(")")):
            return _refuse(text)
        parts = [part.strip() for part in _split(text[1:-1])]
        return tuple(_parse(part, args[0]) for part in parts if part or len(parts) > 2)
    return _PARSERS[hint](text)


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _exactly(values: dict[str, Any]) -> Callable[[str], Any]:
    return lambda text: values[text.lower()] if text.lower() in values else _refuse(text)


_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: _exactly({"true": True, "false": False}),
    type(None): _exactly({"none": None}),
}


def _spoken(hint: Any) -> str:
    args = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return f"value of this option; known: {', '.join(map(str, args))}"
    if typing.get_origin(hint) is tuple:
        return f"({_spoken(args[0])},...)"
    if args:
        return " or ".join(_spoken(arg) for arg in args)
    return {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "None"}[hint]


def _short(options: list[str]) -> list[str]:
    """Options without their section, where that tells them apart."""
    last = [option.partition(".")[2] for option in options]
    return [short if last.count(short) == 1 else option for short, option in zip(last, options, strict=True)]


def _folder(parts: list[str]) -> str:
    """A folder's name made of parts; one that is long or had to be changed ends with a checksum, to stay its own."""
    text = ",".join(parts)
    plain = re.sub(r"[^\w=,.+-]+", "-", text, flags=re.ASCII)
    if plain == text and len(text) <= 120:
        return text
    return f"{plain[:100].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
