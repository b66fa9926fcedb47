"""A hundred complaints from the trackers of other servers and gateways: each is asked here, and what Headrace says is held against the row."""

import os
import re

import pytest

from complaints import CLASSES, CONFIGURATION, ROWS, House, judged, page
from conftest import ROOT, Server
from listening import Handler, Listening

PAGE = ROOT / "docs" / "complaints.md"
TOLD = {}


class Stale(Handler):
    """A server behind that does not take the key that is configured for it."""

    def do_POST(self):
        self.body()
        error = b'{"error": {"message": "Incorrect API key provided: sk-stale", "code": "invalid_api_key"}}'
        self.answer(error, status=401, content_type="application/json")


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    stale = Listening(Stale)
    settings = {"HEADRACE_UPSTREAM_GONE_KEY": "sk-gone", "HEADRACE_UPSTREAM_STALE_KEY": "sk-stale"}
    configuration = CONFIGURATION % {"stale": stale.url}
    server = Server(tmp_path_factory.mktemp("complaints"), settings, configuration)
    assert server.run("credit", "grant", "10").returncode == 0
    yield House(server)
    server.stop()
    stale.stop()


@pytest.mark.parametrize("row", ROWS, ids=[row["thread"] for row in ROWS])
def test_a_complaint_is_answered(house, row):
    told = house.told(row)
    TOLD[row["thread"]] = told
    wrong = judged(row, told)
    assert not wrong, f"{row['asked']}: {wrong}; said was: {told}"


def test_the_rows_are_a_table():
    threads = [row["thread"] for row in ROWS]
    assert len(set(threads)) == len(threads), "a thread twice"
    for row in ROWS:
        assert row["class"] in CLASSES and row["asked"].rstrip("`").endswith((".", "?", "!")), row
        # A repository and a number, so that anybody can look.
        assert re.fullmatch(r"[\w.-]+/[\w.-]+ (PR |#)?\d+", row["thread"].replace("#", "#")), row["thread"]
        assert row["says"].get("words"), row


def test_the_page_is_written_from_the_rows():
    """HEADRACE_BLESS=1 writes it anew."""
    if len(TOLD) < len(ROWS):
        pytest.skip("only where every row was asked")
    if os.environ.get("HEADRACE_BLESS"):
        PAGE.write_text(page([(row, TOLD[row["thread"]]) for row in ROWS]))
    written = PAGE.read_text()
    missing = [row["thread"] for row in ROWS if f"| {row['thread']} |" not in written]
    assert not missing, f"not on the page: {missing}; HEADRACE_BLESS=1 writes it"
