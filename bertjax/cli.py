"""The command line: ``bertjax train|landscape|demo`` and the entry scripts train.py and landscape.py.

Errors of the input are one line on standard error and exit code 2; Ctrl-C is exit code 130.
"""

import os
import sys
from collections.abc import Callable, Sequence

from bertjax.errors import InputError

USAGE = """usage: bertjax COMMAND ...

  bertjax train CONFIG[:ARG] [--section.field=value ...]    fine-tune a model (train.py)
  bertjax landscape curve|surface|rollback|draw RUN ...     loss landscape of a run (landscape.py)
  bertjax demo [options]                                    the whole demonstration

COMMAND --help lists the options."""


def guarded(function: Callable[[Sequence[str]], None], argv: Sequence[str]) -> None:
    """Runs a command; turns InputError into one line and exit code 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # transformers notices at import that no PyTorch is there; it is not needed.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        function(argv)
    except InputError as error:
        message = " ".join(str(error).split())
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("interrupted: what was complete is kept; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None


def train(argv: Sequence[str] | None = None) -> None:
    """``train.py CONFIG[:ARG] [--section.field=value ...]``"""
    guarded(_train, sys.argv[1:] if argv is None else argv)


def landscape(argv: Sequence[str] | None = None) -> None:
    """``landscape.py curve|surface|rollback|draw RUN ...``"""
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

    if not argv or argv[0].startswith("-"):
        if argv and argv[0] in ("--help", "-h"):
            print(
                "usage: train.py CONFIG[:ARG] [--section.field=value ...]\n\nCONFIG is a file in configs/ or its name. "
                "The options below show the defaults; a config file sets its own.\n"
            )
            tyro.cli(RunConfig, prog="train.py CONFIG[:ARG]", args=["--help"], use_underscores=True)
        raise InputError("train: expected CONFIG[:ARG] first, for example: python train.py configs/quickstart.py")
    default = load_config(argv[0])
    config = tyro.cli(RunConfig, prog=f"train.py {argv[0]}", default=default, args=list(argv[1:]), use_underscores=True)
    from bertjax.training.loop import train

    train(config)


def _landscape(argv: Sequence[str]) -> None:
    from bertjax.landscape import commands

    commands.main(argv)


def _demo(argv: Sequence[str]) -> None:
    from bertjax import demo as module

    module.main(argv)
