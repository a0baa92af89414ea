"""Fine-tunes a BERT: ``python train.py CONFIG[:ARG] [--section.field=value ...]``."""

from bertjax.cli import train

if __name__ == "__main__":
    train()
