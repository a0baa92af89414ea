"""Loss landscapes of a run: ``python landscape.py curve|surface|trajectory|rollback|... RUN [options]``."""

from bertjax.cli import landscape

if __name__ == "__main__":
    landscape()
