"""HTML that is escaped unless it was built here: elements, tables, folded parts, JSON inside a script element."""

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

VOID = ("input", "link", "meta")  # no end tag
EMPTY = ("line", "circle", "path", "rect")  # of SVG: closed at once


class Html(str):
    """Text that is HTML already; any other text is escaped when it becomes part of an element."""

    __slots__ = ()


def clean(text: object) -> str:
    """Text without control characters and lone surrogates, which no HTML file may hold."""
    text = str(text).encode("utf-8", "replace").decode("utf-8")
    return "".join(
        letter for letter in text if letter in "\n\t" or (ord(letter) >= 32 and not 127 <= ord(letter) < 160)
    )


def escape(value: object) -> Html:
    """A value as HTML text; what is HTML already stays as it is."""
    return value if isinstance(value, Html) else Html(html.escape(clean(value)))


def join(parts: Iterable[object]) -> Html:
    """Parts one after another, each escaped unless it is HTML; None is left out."""
    return Html("".join(escape(part) for part in parts if part is not None))


def el(tag: str, *children: object, **attributes: object) -> Html:
    """An element. Attribute names: `class_` is class, `aria_label` is aria-label; True is bare, None is left out."""
    parts = [f"<{tag}"]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        parts.append(f" {name}" if value is True else f' {name}="{html.escape(clean(value))}"')
    if tag in VOID or tag in EMPTY:
        return Html("".join([*parts, ">" if tag in VOID else "/>"]))
    return Html("".join([*parts, ">", join(children), f"</{tag}>"]))


def table(
    caption: object,
    columns: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    prose: bool = False,
) -> Html:
    """A table in a box of its own that scrolls sideways, also by keyboard.

    Arguments:
      caption: what the table holds.
      columns: heads of the columns.
      rows: cells; the first of each row is its head.
      numbers: columns that are set flush right.
      prose: cells hold sentences; on a narrow screen every row is set as a paragraph, with the columns' names in it.
    """
    roles = {"row": "row", "cell": "cell", "head": "rowheader", "column": "columnheader"} if prose else {}
    look = ["n" if i in numbers else None for i in range(len(columns))]
    titles = (el("th", text, scope="col", class_=look[i], role=roles.get("column")) for i, text in enumerate(columns))
    head = el("tr", *titles, role=roles.get("row"))
    body = join(
        el(
            "tr",
            el("th", row[0], scope="row", class_=look[0], role=roles.get("head")),
            *(
                el("td", cell, class_=look[i], role=roles.get("cell"), data_label=columns[i] if prose else None)
                for i, cell in enumerate(row[1:], 1)
            ),
            role=roles.get("row"),
        )
        for row in rows
    )
    look_and_role = {"class_": "prose", "role": "table", "aria_label": caption} if prose else {}
    whole = el("table", el("caption", caption), el("thead", head), el("tbody", body), **look_and_role)
    return el("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def details(summary: object, *children: object) -> Html:
    """A part that is folded until it is asked for."""
    return el("details", el("summary", summary), *children)


def code(text: object) -> Html:
    """A path, a command, a name of the program."""
    return el("code", text)


def script_json(value: Any) -> Html:
    """JSON that is safe inside a script element; numbers that are not finite become null."""
    text = json.dumps(plain_data(value), allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Html(text)


def plain_data(value: Any) -> Any:
    """Nested dictionaries and lists of what JSON knows: arrays as lists, not-finite numbers as None."""
    if isinstance(value, dict):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain_data(value.tolist())
    if isinstance(value, np.generic):
        return plain_data(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return clean(value) if isinstance(value, str) else value


def plotly_text(text: object, width: int | None = None) -> str:
    """Text for a plotly figure, which reads some HTML: escaped, and broken into lines of `width` letters."""
    words, lines = clean(text).replace("%{", "%\u200b{").split(), [""]  # "%{...}" is a place for a value
    for word in words:
        if width and lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(html.escape(line, quote=False) for line in lines)
