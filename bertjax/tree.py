"""Parameter trees: nested dictionaries whose leaves are named by their path, as ``a/b/c``."""

from typing import Any

Tree = dict[str, Any]


def flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Leaves of a nested dictionary by their path, as ``a/b/c``."""
    flat = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        flat |= flatten(value, f"{path}/") if isinstance(value, dict) else {path: value}
    return flat


def unflatten(flat: dict[str, Any]) -> Tree:
    """The inverse of `flatten`."""
    tree: Tree = {}
    for path, value in flat.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree
