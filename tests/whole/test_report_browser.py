"""The pages in a real browser: nothing to complain about, nothing cut off, and what can be clicked works.

Needs Chromium (Debian: apt-get install chromium). Where there is none the tests are skipped, unless
CINGULUM_REQUIRE_BROWSER=1 says that there must be one, as .ci/run does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import browsers
import pytest
from made_up_pipeline import add_pipeline
from made_up_run import make_crossval, make_divided, make_run
from made_up_study import make_rows, make_study
from playwright.sync_api import Browser, Page

from trainer.bench.scaling import page as scaling_page
from trainer.report import comparison_page, crossval_page
from trainer.report.run_page import render
from trainer.report.story import read

PAGES = (
    *("classification", "regression", "segmentation", "unfinished", "comparison", "crossval", "scaling"),
    *("divided", "divided-over-many"),
)
TRAINED = ("data", "parameter-server/mode=async", "data/reduction=per_tensor")
PHONE, DESKTOP = (390, 844), (1280, 900)


LONG_NAMES = (
    "mild_cognitive_impairment", "cognitively normal person", "AlzheimersDiseaseDementiaX",
    "frontotemporal-dementia-b",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.started() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The address of each kind of report."""
    folder = tmp_path_factory.mktemp("pages")
    html = {}
    for task in ("classification", "regression", "segmentation"):
        html[task] = render(read(make_run(folder / task, task=task))).html
    for name, count in (("two-long-names", 2), ("four-long-names", 4)):
        html[name] = render(read(make_run(folder / name, classes=LONG_NAMES[:count]))).html
    unfinished = make_run(folder / "unfinished", subjects=20)
    for gone in ("result.json", "run.json", "baseline.json"):
        (unfinished / gone).unlink()
    shutil.rmtree(unfinished / "evaluation")
    html["unfinished"] = render(read(unfinished)).html
    for name, ranks in (("divided", 3), ("divided-over-many", 20)):
        made = add_pipeline(make_divided(folder / name, ranks), ranks, micro_batches=8)
        html[name] = render(read(made)).html
    second = make_run(folder / "a-second-run-with-quite-a-long-name", skill=0.5)
    html["comparison"] = comparison_page.render([folder / "classification", second]).html
    html["crossval"] = crossval_page.render(make_crossval(folder / "cv")).html
    studies = [
        make_study(),
        make_study(models=("vgg",), strategies=TRAINED, epochs=3),
    ]
    rows = {name: row for study in studies for name, row in make_rows(study).items()}
    html["scaling"] = scaling_page.render(studies, rows).html
    for name, text in html.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in html}


@pytest.fixture
def opened(browser, pages):
    """Opens a page at a size; at the end, nothing may have been complained about."""
    complaints: list[str] = []
    made: list[Page] = []

    def open_page(name: str, size: tuple[int, int] = DESKTOP) -> Page:
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: complaints.append(asked.url) if is_foreign(asked.url) else None)
        page.goto(pages[name])
        made.append(page)
        return page

    yield open_page
    for page in made:
        page.close()
    assert complaints == []


def is_foreign(address: str) -> bool:
    return not address.startswith(("file:", "data:"))


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_screen(opened, name, size):
    page = opened(name, size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    # A table or a wide chart may be wider than its frame, which scrolls by itself; all else must fit.
    cut_off = page.evaluate(
        "Array.from(document.querySelectorAll('main *:not(.scroll *, .sideways *, svg *)'))"
        ".filter(e => { const b = e.getBoundingClientRect();"
        " return b.right > innerWidth + 1 || b.left < -1; })"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert cut_off == []


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", ["two-long-names", "four-long-names"])
def test_a_confusion_matrix_with_long_names_is_legible(opened, name, size):
    page = opened(name, size)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    table = page.locator("table.confusion")
    cells = table.locator("tbody td").evaluate_all("all => all.map(c => c.getBoundingClientRect().toJSON())")
    assert all(cell["width"] > 44 and cell["height"] > 44 for cell in cells)
    assert len({round(cell["width"]) for cell in cells}) == 1
    # A name may be parted into lines, but not letter by letter, and stays inside of its cell.
    lines = table.locator("th").evaluate_all(
        "all => all.map(t => { const b = document.createRange(); b.selectNodeContents(t);"
        " const inner = b.getBoundingClientRect(), outer = t.getBoundingClientRect();"
        " return {inside: inner.left >= outer.left && inner.right <= outer.right,"
        " lines: inner.height / parseFloat(getComputedStyle(t).lineHeight)}; })"
    )
    assert all(one["inside"] and one["lines"] < 5.5 for one in lines), lines


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_is_seen_with_its_text_inside(opened, name):
    page = opened(name, PHONE)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    boxes = page.eval_on_selector_all(
        "svg.chart",
        "charts => charts.map(c => c.checkVisibility() ? c.getBoundingClientRect().toJSON() : null)",
    )
    assert len(boxes) >= 2
    assert all(box and box["width"] > 250 and box["height"] > 80 for box in boxes)
    outside = page.evaluate(
        "Array.from(document.querySelectorAll('svg.chart text')).filter(text => {"
        " const a = text.getBoundingClientRect(), b = text.closest('svg').getBoundingClientRect();"
        " return a.width && (a.left < b.left - 6 || a.right > b.right + 6 || a.bottom > b.bottom + 2); })"
        ".map(text => text.textContent)"
    )
    assert outside == []


@pytest.mark.parametrize("name", ["classification", "regression", "segmentation"])
def test_pictures_are_decoded(opened, name):
    page = opened(name)
    page.wait_for_load_state("load")
    widths = page.eval_on_selector_all("img", "images => images.map(image => image.naturalWidth)")
    assert len(widths) >= 5 and min(widths) > 100


@pytest.mark.parametrize("name", ["crossval", "scaling"])
def test_marks_have_colours(opened, name):
    """A class without a rule leaves a line without a colour: it is there and cannot be seen."""
    page = opened(name)
    strokes = page.eval_on_selector_all("svg .line", "lines => lines.map(l => getComputedStyle(l).stroke)")
    assert strokes and "none" not in strokes
    fills = page.eval_on_selector_all(
        "svg .dot, svg .bar", "marks => marks.map(m => getComputedStyle(m).fill)"
    )
    assert fills and "none" not in fills


def column(page: Page, place: int) -> list[str]:
    return page.locator(f"table.sortable tbody tr > *:nth-child({place})").all_inner_texts()


def test_a_click_on_a_heading_sorts_the_table_and_another_turns_it(opened):
    page = opened("regression")
    errors = [float(text) for text in column(page, 5)]
    assert errors == sorted(errors, reverse=True)
    difference = page.get_by_role("button", name="Difference")
    difference.click()
    values = [float(text) for text in column(page, 4)]
    assert values == sorted(values) and values[0] < 0 < values[-1]
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Difference")
    difference.click()
    assert [float(text) for text in column(page, 4)] == sorted(values, reverse=True)
    page.get_by_role("button", name="Subject").click()
    assert column(page, 1) == sorted(column(page, 1))
    assert page.locator("th[aria-sort]").count() == 1


def test_the_checklist_opens_and_leads_to_what_states_an_item(opened):
    page = opened("classification")
    link = page.get_by_role("link", name="Methods: Software and hardware")
    assert not link.is_visible()
    page.get_by_text("CLAIM checklist: where each item is stated").click()
    link.click()
    assert page.evaluate("location.hash") == "#methods-software"
    assert page.locator("#methods-software").is_visible()


def test_print_shows_whole_tables_in_black_on_white(opened):
    page = opened("classification")
    page.emulate_media(media="print", color_scheme="dark")
    table = page.locator(".scroll.tall")
    assert table.evaluate("box => box.scrollHeight <= box.clientHeight + 2")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(22, 32, 44)"


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_strip_shows_each_rank_with_its_share(opened, size):
    page = opened("divided", size)
    strip = page.locator("#placement .strip").first
    widths = strip.locator("i").evaluate_all("all => all.map(i => i.getBoundingClientRect().width)")
    assert [round(width / sum(widths), 1) for width in widths] == [0.5, 0.3, 0.2]
    assert strip.locator("i").all_inner_texts() == ["0", "1", "2"]
    colours = strip.locator("i").evaluate_all("all => all.map(i => getComputedStyle(i).backgroundColor)")
    assert len(set(colours)) == 3
    assert strip.get_attribute("aria-label") == "rank 0: 50\xa0%, rank 1: 30\xa0%, rank 2: 20\xa0%"
    assert page.locator("#placement .pairs tbody tr").count() == 3


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_numbers_of_micro_batches_are_inside_of_their_blocks_and_large_enough(opened, size):
    chart = opened("divided", size).locator("#figure-pipeline .chart")
    boxes = "all => all.map(e => e.getBoundingClientRect()).map(b => [b.left, b.right, b.top, b.bottom])"
    blocks = chart.locator(".pass").evaluate_all(boxes)
    numbers = chart.locator(".inside").evaluate_all(boxes)
    assert len(blocks) == len(numbers) == 2 * 2 * 3 * 8
    for left, right, top, bottom in numbers:
        assert bottom - top >= 7
        assert any(b[0] <= left and right <= b[1] and b[2] - 1 <= top and bottom <= b[3] + 1 for b in blocks)
