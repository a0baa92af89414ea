"""report.html in headless Chromium: no error, no request, plots drawn, no sideways scrolling, all reached by keyboard.

BERTJAX_PICTURES names a folder that keeps the pictures which these tests look at.
"""

import os
from pathlib import Path

import chromium
import matplotlib.image
import numpy as np
import pytest
from test_figures import SURFACES, curve, records, rollback, surface
from test_page import HOSTILE, make_run

from bertjax.report.page import write_page
from bertjax.report.style import COLORS

pytestmark = pytest.mark.slow

WIDTHS = {"wide": (1280, False), "phone": (390, True)}
DRAWN = "document.documentElement.dataset.drawn !== undefined"
BOX = "(e => {const r = e.getBoundingClientRect();"
BOX += " return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height}})"
# What a key can reach: one stop per group of radio buttons, nothing inside what is folded or hidden.
REACHABLE = """[...document.querySelectorAll('a[href], button, input, summary, [tabindex="0"]')]
  .filter(e => e.checkVisibility() && (e.type !== 'radio' || e.checked))
  .map((e, i) => { e.dataset.stop = i; return e.tagName }).length"""
# The browser's remarks on its own software renderer are not the page's.
RENDERER = ("GPU stall due to ReadPixels", "willReadFrequently")
CIVIDIS = np.array(matplotlib.colormaps["cividis"](np.linspace(0, 1, 64)))[:, :3]


@pytest.fixture(scope="module")
def browser():
    program = chromium.find()
    assert program, f"no {' or '.join(chromium.NAMES)} is installed (on Debian: apt-get install chromium)"
    with chromium.browser(program) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Name -> page: all results, results with gaps, hostile words, nothing."""
    folder = tmp_path_factory.mktemp("pages")
    gaps = {"curve": curve(bad=[0, 5], todo=[6]), "surface": surface(SURFACES["nan cells"])}
    words = "".join(HOSTILE)
    attrs = {"direction_x": words, "loss_name": words, "kind": "surface"}
    runs = {
        "full": {
            "lines": records(),
            "curve": curve(majority=0.6),
            "surface": surface(SURFACES["bowl"]),
            "rollback": rollback(kind="rollback", majority=0.6),
        },
        "gaps": {"lines": records(bad=True), **gaps, "flat": surface(SURFACES["all nan"])},
        "log": {"curve": curve(loss=np.exp(np.linspace(-5, 9, 17))), "surface": surface(SURFACES["seven decades"])},
        "hostile": {"config": {"name": words}, "lines": records(), "surface": surface(SURFACES["bowl"], **attrs)},
        "empty": {},
    }
    return {name: write_page(make_run(folder / name, **parts)) for name, parts in runs.items()}


def opened(browser, path, width, phone=False):
    browser.open(path, width, phone=phone)
    if browser.evaluate("document.getElementById('figures').textContent") != "[]":
        browser.wait(DRAWN)


def problems(browser):
    return [text for text in browser.problems if not any(remark in text for remark in RENDERER)]


def keep(name, picture):
    if folder := os.environ.get("BERTJAX_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        matplotlib.image.imsave(Path(folder) / f"{name}.png", np.ascontiguousarray(picture))


def share(picture, colors, near=0.06):
    """Share of the pixels that have one of the colours."""
    distance = np.abs(picture[..., None, :] - np.asarray(colors)).max(axis=-1).min(axis=-1)
    return float((distance < near).mean())


def plot_picture(browser, figure, index=0):
    query = f"document.querySelectorAll('#{figure} .plot')[{index}]"
    return browser.picture(browser.evaluate(f"{BOX}({query})"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["full", "gaps", "log", "hostile", "empty"])
def test_no_error_no_request_and_no_sideways_scrolling(browser, pages, name, width):
    opened(browser, pages[name], *WIDTHS[width])
    pixels = WIDTHS[width][0]
    assert browser.evaluate("document.documentElement.scrollWidth") == pixels
    height = browser.evaluate("document.documentElement.scrollHeight")
    keep(f"{name}-{width}", browser.picture({"x": 0, "y": 0, "width": pixels, "height": height}))
    # Nothing that is seen sticks out, except inside a box that scrolls by itself.
    outside = browser.evaluate(
        """[...document.querySelectorAll('main *, header *')].filter(e => e.checkVisibility()
          && !e.closest('.scroll, svg') && e.getBoundingClientRect().right > innerWidth + 1).length"""
    )
    assert outside == 0
    browser.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
    assert browser.evaluate("document.documentElement.scrollWidth") == pixels
    assert problems(browser) == []
    asked = [address for address in browser.requests if not address.startswith("data:")]
    assert asked == [pages[name].resolve().as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
def test_plots_are_drawn(browser, pages, width):
    opened(browser, pages["full"], *WIDTHS[width])
    blue = [[int(COLORS[0][i : i + 2], 16) / 255 for i in (1, 3, 5)]]
    for figure in ("figure-1", "figure-2"):  # learning curves, loss curve: two panels each
        for index in (0, 1):
            assert share(plot_picture(browser, figure, index), blue) > 0.001, (figure, index)
    contours = plot_picture(browser, "figure-3")
    assert share(contours, CIVIDIS) > 0.4
    bars = [[int(COLORS[4][i : i + 2], 16) / 255 for i in (1, 3, 5)], [0.75, 0.75, 0.75]]
    assert share(plot_picture(browser, "figure-4"), bars) > 0.15
    keep(f"contours-{width}-grey", np.repeat((contours @ (0.299, 0.587, 0.114))[..., None], 3, axis=-1))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["full", "gaps", "log"])
def test_3d_is_drawn_and_turns_by_keyboard(browser, pages, name, width):
    opened(browser, pages[name], *WIDTHS[width])
    figure = browser.evaluate("document.querySelector('#surface figure:last-of-type').id")
    browser.evaluate(f"document.querySelector('#{figure} input[value=contours]').focus()")
    browser.press("ArrowRight", 39)
    assert browser.evaluate(f"document.querySelector('#{figure} input[value=space]').checked")
    browser.wait(f"document.querySelector('#{figure} canvas') !== null")
    browser.wait("new Promise(done => setTimeout(() => done(true), 1500))")
    first = plot_picture(browser, figure)
    keep(f"space-{name}-{width}", first)
    assert share(first, CIVIDIS) > 0.06  # an empty plot has none
    browser.evaluate(f"document.querySelector('#{figure} input[data-role=turn]').focus()")
    for _ in range(40):
        browser.press("ArrowRight", 39)
    browser.wait("new Promise(done => setTimeout(() => done(true), 800))")
    assert np.abs(plot_picture(browser, figure) - first).mean() > 0.01
    assert problems(browser) == []


def test_reading_by_keyboard_says_the_stored_value(browser, pages):
    opened(browser, pages["full"], 1280)
    browser.evaluate("document.querySelector('#figure-2 input[data-role=read-0]').focus()")
    before = browser.evaluate("document.querySelector('#figure-2 output').textContent")
    browser.press("Home", 36)
    text = browser.evaluate("document.querySelector('#figure-2 output').textContent")
    assert text != before
    assert text.startswith(f"α = -4: train loss {float(curve()['loss'][0, 0]):.3f} ± 0.039")
    browser.evaluate("document.querySelector('#figure-3 input[value=error]').click()")
    browser.evaluate("document.querySelector('#figure-3 input[value=dev]').click()")
    browser.evaluate("document.querySelector('#figure-3 input[data-role=read-1]').focus()")
    browser.press("End", 35)
    text = browser.evaluate("document.querySelector('#figure-3 output').textContent")
    stored = surface(SURFACES["bowl"])["error"].sel(split="dev", alpha=1.0, beta=1.0, method=None)
    assert text == f"α = 1, β = 1: dev error {float(stored):.3f}"
    assert browser.evaluate("document.querySelector('#figure-3 .label').textContent").startswith("dev, error rate")


@pytest.mark.parametrize("width", WIDTHS)
def test_tab_reaches_everything_interactive_and_shows_where_it_is(browser, pages, width):
    opened(browser, pages["full"], *WIDTHS[width])
    browser.evaluate("document.querySelector('#figure-3 input[value=space]').click()")
    browser.wait("document.querySelector('#figure-3 canvas') !== null")
    browser.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
    count = browser.evaluate(REACHABLE)
    browser.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    seen, outlined = [], []
    for _ in range(count):
        browser.press("Tab", 9)
        stop, outline = browser.evaluate(
            "(e => [e.dataset.stop, getComputedStyle(e.closest('label:has([type=radio])') ?? e).outlineStyle])"
            "(document.activeElement)"
        )
        seen.append(stop)
        outlined.append(outline)
    assert seen == [str(number) for number in range(count)]  # each once, in the order of the page
    assert set(outlined) == {"solid"}


def test_without_scripts_every_value_is_there(browser, pages):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages["full"], 1280)
        text = browser.evaluate("document.body.innerText + document.body.textContent")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "The figures need JavaScript" in text and f"{float(curve()['loss'][0, 0]):.6g}" in text


def test_hostile_words_run_nothing(browser, pages):
    opened(browser, pages["hostile"], 1280)
    assert browser.evaluate("document.querySelectorAll('img, b').length") == 2  # the two sources in bold
    assert browser.evaluate("document.querySelector('h1').textContent") == "".join(HOSTILE)
    # Were a word not escaped, the page's policy would still stop it: a script of our own is refused.
    browser.evaluate("document.body.append(Object.assign(document.createElement('script'), {textContent: 'hit = 1'}))")
    assert browser.evaluate("typeof hit") == "undefined"
    assert any("Content Security Policy" in text for text in browser.problems)
