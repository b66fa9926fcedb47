"""One Chromium for the whole run, and pages that notice everything that should not be: errors, refused contents, other people's servers."""

import os
import pathlib
import shutil

import pytest
from playwright.sync_api import sync_playwright

import fixture
import fixture_pages

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["now", "requests", "cache", "moderation", "money", "gateways", "playground", "prompt", "keys", "users", "tiers", "budgets", "invoices", "models", "audit", "settings"]
WIDTHS = {"wide": 1280, "narrow": 390}


@pytest.fixture(scope="session")
def browser():
    if not CHROMIUM:
        pytest.exit("no Chromium: `apt-get install chromium`, or name one with CHROMIUM", returncode=2)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page of the console, and what went wrong in it."""

    def __init__(self, browser, url, width=1280, dark=False):
        self.url = url
        self.context = browser.new_context(viewport={"width": width, "height": 820}, color_scheme="dark" if dark else "light", timezone_id="Asia/Tokyo")
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.wrong = []
        self.fetched = []
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("console", lambda said: self.wrong.append(f"{said.type}: {said.text}") if said.type in ("error", "warning") and "Failed to load resource" not in said.text else None)
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.fetched.append(request.url))

    def sign_in(self, link="x"):
        self.page.goto(f"{self.url}#sign-in={link}")
        self.page.wait_for_selector(".shell")
        return self

    def go(self, address):
        self.page.evaluate("address => { location.hash = '#/' + address; }", address)
        self.page.wait_for_selector("main h1")
        self.settle()
        return self.page

    def settle(self):
        """Until nothing is fetched and no grey line is left."""
        self.page.wait_for_function("() => document.querySelector('main h1') && !document.querySelector('.skeleton')")
        self.page.wait_for_timeout(60)
        # What was set meanwhile is drawn.
        self.page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")

    def close(self):
        assert self.page.evaluate("window.pwned") is None, "a text has become code"
        elsewhere = [url for url in self.fetched if not url.startswith((self.url, "data:", "blob:"))]
        assert not elsewhere, elsewhere
        assert not self.wrong, self.wrong
        self.context.close()


@pytest.fixture
def tabs(browser):
    """Opens tabs of a server; each is looked through when the test is over."""
    opened = []

    def open_tab(url, **how):
        opened.append(Tab(browser, url, **how))
        return opened[-1]

    yield open_tab
    for tab in opened:
        tab.close()


@pytest.fixture
def canned():
    """The server of canned answers, fresh."""
    fixture.BOOKS.__init__()
    server = fixture_pages.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture
def books():
    return fixture.BOOKS
