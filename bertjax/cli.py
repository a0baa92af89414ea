"""The command line: ``bertjax train|landscape|demo`` and the entry scripts train.py and landscape.py.

Errors of the input and of the file system are one line on standard error and exit code 2; a signal is exit code
128 + its number (130 for Ctrl-C, 143 for SIGTERM).
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from bertjax.errors import InputError, first_line

USAGE = """usage: bertjax COMMAND ...

  bertjax train CONFIG[:ARG] [--section.field=value ...]    fine-tune a model (train.py)
  bertjax landscape curve|surface|trajectory|... RUN ...    loss landscape of a run (landscape.py)
  bertjax demo [options]                                    the whole demonstration

COMMAND --help lists the options."""


DRY_RUN = ("--dry-run", "--dry_run")


def guarded(function: Callable[[Sequence[str]], None], argv: Sequence[str]) -> None:
    """Runs a command; turns what a user can mend into one line and exit code 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        function(argv)
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _fail(f"{error.strerror or first_line(error)}{where}; what was complete before is kept")
    except KeyboardInterrupt as error:
        print("interrupted: what was complete is kept; the same command continues", file=sys.stderr)
        raise SystemExit(128 + getattr(error, "number", signal.SIGINT)) from None


def _fail(message: str) -> NoReturn:
    print(f"error: {' '.join(line.strip() for line in message.splitlines())}", file=sys.stderr)
    raise SystemExit(2) from None


def train(argv: Sequence[str] | None = None) -> None:
    """``train.py CONFIG[:ARG] [--section.field=value ...]``"""
    guarded(_train, sys.argv[1:] if argv is None else argv)


def landscape(argv: Sequence[str] | None = None) -> None:
    """``landscape.py curve|surface|trajectory|rollback|compare|report|draw RUN ...``"""
    guarded(_landscape, sys.argv[1:] if argv is None else argv)


def demo(argv: Sequence[str] | None = None) -> None:
    """``python -m bertjax.demo [options]``"""
    guarded(_demo, sys.argv[1:] if argv is None else argv)


def main() -> None:
    """The installed command ``bertjax``."""
    commands = {"train": train, "landscape": landscape, "demo": demo}
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("--help", "-h"):
        print(USAGE)
    elif name in commands:
        commands[name](sys.argv[2:])
    else:
        from bertjax.config import nearest

        print(f"error: no command {name!r}{nearest(name, commands)}", file=sys.stderr)
        raise SystemExit(2)


def _train(argv: Sequence[str]) -> None:
    import tyro

    from bertjax.config import RunConfig, load_config
    from bertjax.study.options import StudyConfig

    if argv and argv[0] in ("predict", "evaluate"):
        from bertjax import predict

        predict.main(argv)
        return
    if not argv or argv[0].startswith("-"):
        if argv and argv[0] in ("--help", "-h"):
            print(
                "usage: train.py CONFIG[:ARG] [--dry-run] [--section.field=value ...]\n"
                "       train.py CONFIG[:ARG] --study.seeds=5 --study.axis OPTION=VALUE,... ...   many runs\n"
                "       train.py predict|evaluate RUN FILE [options]\n\n"
                "CONFIG is a file in configs/ or its name. --dry-run says what the run would do and cost.\n"
                "The options below show the defaults; a config file sets its own.\n"
            )
            tyro.cli(StudyConfig, prog="train.py CONFIG[:ARG]", args=["--help"], use_underscores=True)
        raise InputError("train: expected CONFIG[:ARG] first, for example: python train.py configs/quickstart.py")
    default = load_config(argv[0])
    options = [option for option in argv[1:] if option not in DRY_RUN]
    dry = len(options) < len(argv) - 1
    if isinstance(default, StudyConfig) or any(option.startswith("--study.") for option in options):
        from bertjax.study import runner

        kind, default = StudyConfig, StudyConfig.of(default)
        command = runner.dry_run if dry else runner.run_study
    else:
        from bertjax.training import estimate, loop

        kind, command = RunConfig, estimate.dry_run if dry else loop.train
    command(tyro.cli(kind, prog=f"train.py {argv[0]}", default=default, args=options, use_underscores=True))


def _landscape(argv: Sequence[str]) -> None:
    from bertjax.landscape import commands

    commands.main(argv)


def _demo(argv: Sequence[str]) -> None:
    from bertjax import demo as module

    module.main(argv)
