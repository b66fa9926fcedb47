"""The book as the program serves it: read by whoever comes, in the console's look, every link of every page walked."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request

import pytest

from conftest import WIDTHS
from test_pages import broken_rules
from test_real import House

LOOKED_AT = ["", "tour", "recipes/teams", "parameters", "errors", "errors/out_of_money", "console", "changelog", "nothing-here"]


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    house = House(tmp_path_factory.mktemp("book"))
    yield house
    house.stop()


def fetch(url):
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers), refused.read()


def open_page(tabs, house, name, **how):
    tab = tabs(house.console, **how)
    tab.page.goto(f"{house.console}docs/{name}")
    tab.page.locator(".find").wait_for()
    return tab


def test_every_link_of_every_page_leads_somewhere(house):
    seen, waiting, walked = {}, ["/docs/"], 0
    waiting += [row["address"] for row in json.loads(fetch(f"{house.console}docs/index.json")[2])["data"]]
    assert len(waiting) > 100
    while waiting:
        address = waiting.pop()
        if address in seen:
            continue
        status, headers, body = fetch(urllib.parse.urljoin(house.console, address))
        assert status == 200, address
        if not headers["content-type"].startswith("text/html"):
            seen[address] = set()
            continue
        text = body.decode()
        seen[address] = set(re.findall(r' id="([^"]+)"', text))
        for link in re.findall(r' (?:href|src)="([^"]+)"', text):
            walked += 1
            if link.startswith(("https://", "http://")):
                continue
            waiting.append(urllib.parse.urljoin(address, link).split("#")[0])
    assert walked > 1000


def test_a_page_that_there_is_not_says_so(house, tabs):
    status, headers, body = fetch(f"{house.console}docs/errors/no_such_code")
    assert status == 404 and headers["content-type"].startswith("text/html") and "default-src 'none'" in headers["content-security-policy"]
    assert b"There is no such page" in body
    tab = open_page(tabs, house, "errors/no_such_code")
    tab.page.get_by_role("heading", name="There is no such page").wait_for()
    status, headers, _ = fetch(f"{house.console}nothing.js")
    assert status == 404 and headers["content-type"].startswith("application/json")


def test_a_page_is_whole_without_scripts_and_known_ones_are_not_sent_again(house):
    status, headers, body = fetch(f"{house.console}docs/tour")
    assert status == 200 and b"<article" in body and b'href="/docs/recipes/laptop"' in body
    assert "unsafe" not in headers["content-security-policy"]
    request = urllib.request.Request(f"{house.console}docs/tour", headers={"if-none-match": headers["etag"]})
    with pytest.raises(urllib.error.HTTPError) as unchanged:
        urllib.request.urlopen(request, timeout=60)
    assert unchanged.value.code == 304
    assert fetch(f"{house.console}docs/tour.md")[2] == body


@pytest.mark.parametrize("width, dark", [("wide", False), ("narrow", True)])
def test_pages_are_accessible_and_fit_their_window(house, tabs, width, dark):
    for name in LOOKED_AT:
        tab = open_page(tabs, house, name, width=WIDTHS[width], dark=dark)
        assert not broken_rules(tab.page), name
        assert tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, f"{name} is wider than its window"


@pytest.mark.parametrize("width", [1280, 390])
def test_no_table_of_a_page_is_cut(house, tabs, width):
    tab = open_page(tabs, house, "", width=width)
    for row in json.loads(fetch(f"{house.console}docs/index.json")[2])["data"]:
        # Pages about errors have no tables.
        if "errors/" in row["address"]:
            continue
        tab.page.goto(urllib.parse.urljoin(house.console, row["address"]))
        tab.page.locator(".find").wait_for()
        cut = tab.page.evaluate("""async () => {
          for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
          return [...document.querySelectorAll('.table-wrap')].filter((wrap) => wrap.scrollWidth > wrap.clientWidth).map((wrap) => wrap.textContent.slice(0, 80));
        }""")
        assert cut == [], row["address"]


def test_pictures_are_shown(house, tabs):
    tab = open_page(tabs, house, "console")
    pictures = tab.page.locator(".leaf img")
    assert pictures.count() >= 3
    for at in range(pictures.count()):
        assert pictures.nth(at).evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") > 300


def test_a_page_is_found_by_its_title_and_an_error_by_its_code(house, tabs):
    tab = open_page(tabs, house, "")
    page = tab.page
    page.keyboard.press("/")
    page.get_by_role("combobox").fill("quizzaciously unfindable")
    page.get_by_text("Nothing by that name").wait_for()
    page.get_by_role("combobox").fill("out of money")
    page.get_by_role("option", name="out_of_money").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/docs/errors/out_of_money")
    page.get_by_role("heading", level=1).get_by_text("out_of_money").wait_for()
    page.locator(".find").wait_for()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("budgets three")
    page.get_by_role("option").first.wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/docs/recipes/teams")
    page.locator(".find").wait_for()
    page.keyboard.press("n")
    page.wait_for_url("**/docs/recipes/budgets")


@pytest.mark.parametrize("words", ["429", "fallback", "backup", "fall-back", "journal replay", "KV CACHE", "budget"])
def test_the_search_knows_what_pages_say(house, tabs, words):
    tab = open_page(tabs, house, "")
    page = tab.page
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill(words)
    # Where pages have the words in their titles, the texts are a line behind them.
    more = page.get_by_role("option", name=re.compile(r"\d+ places? in the texts"))
    more.or_(page.locator(".palette-text")).first.wait_for()
    if more.count():
        more.click()
    page.wait_for_selector(".palette-text")
    assert page.get_by_text("Nothing by that name").count() == 0
    shown = page.locator(".palette-list li").filter(has=page.locator(".palette-text"))
    fold = lambda text: text.lower().replace("-", "").replace("\u2011", "")  # noqa: E731
    assert all(fold(word) in fold(shown.first.inner_text()) for word in words.split()), shown.first.inner_text()
    assert not broken_rules(page)
    shown.first.click()
    page.wait_for_url("**/docs/**")
    page.locator(".find").wait_for()
    assert fold(words.split()[0]) in fold(page.locator("article").inner_text())


@pytest.fixture
def own(tmp_path):
    """A server whose sign-in link nobody has used."""
    house = House(tmp_path)
    yield house
    house.stop()


def test_the_console_searches_the_texts_of_the_book_too(own, tabs):
    house = own
    tab = tabs(house.console).sign_in(house.link)
    tab.go("now")
    tab.page.keyboard.press("Control+k")
    tab.page.get_by_role("combobox").fill("hold expires")
    tab.page.locator(".palette-text").first.wait_for()
    tab.page.get_by_role("combobox").fill("zzz nowhere at all")
    tab.page.get_by_role("option", name="Requests whose error contains").wait_for()
    assert tab.page.locator(".palette-text").count() == 0


def test_code_is_copied_as_it_stands(house, tabs):
    tab = open_page(tabs, house, "recipes/teams")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=house.console.rstrip("/"))
    block = tab.page.locator(".with-copy").first
    block.hover()
    block.get_by_role("button", name="Copy").click()
    assert tab.page.evaluate("navigator.clipboard.readText()") == block.locator("code").inner_text()


def test_the_drawer_of_a_narrow_screen_goes_by_keyboard(house, tabs):
    tab = open_page(tabs, house, "tour", width=WIDTHS["narrow"])
    page = tab.page
    assert not page.locator("#side").is_visible()
    page.get_by_role("button", name="Contents").focus()
    page.keyboard.press("Enter")
    page.locator("#side").wait_for()
    assert page.evaluate("document.getElementById('side').contains(document.activeElement)")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelector('.side-open') === null")


def test_the_console_leads_to_the_book_and_an_error_to_its_page(house, tabs):
    assert house.ask("x", temperature=9) == 400
    tab = tabs(house.console).sign_in(house.link)
    page = tab.go("requests?outcome=refused")
    page.locator(".long-view .long-row").first.click()
    page.get_by_role("link", name=re.compile("about")).first.click()
    page.wait_for_url("**/docs/errors/*")
    page.get_by_role("heading", level=1).wait_for()
    page.locator('#side a[href="/"]').click()
    # A page of the book has a frame of the same kind: only the console's own search shows that it is there, and listens.
    page.get_by_role("button", name="Search or jump to").wait_for()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("guided tour")
    page.get_by_role("option", name="A guided tour").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/docs/tour")
