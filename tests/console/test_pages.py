"""Pages over canned answers: what a real run does not show quickly. Hostile texts stand in every list of the canned answers."""

import ast
import json
import re
import shlex

import pytest
from axe_playwright_python.sync_playwright import Axe

from conftest import PAGES, ROOT, WIDTHS
from fixture import HOSTILE, ROWS

REQUEST = "requests/req_00000000000000000000000000000006"
MORE = ["prompt?tab=tokenize", "prompt?tab=doctor", REQUEST, "requests/compare?a=req_00000000000000000000000000000006&b=req_0000000000000000000000000000000c", "keys?tab=projects", "keys?tab=orgs", "keys?tab=operators", "users?tab=service-accounts", "users?tab=groups", "users?tab=scim", "budgets?tab=use", "budgets?tab=alerts",
        *(f"money?tab={tab}" for tab in ["spend", "holds", "prices", "margin", "statement", "ledger"]), "models?tab=upstreams", "models?tab=routes", "cache?by=prefix"]


# A rule that axe leaves out by itself: what is read aloud has the words that are seen.
OPTIONS = {"rules": {"label-content-name-mismatch": {"enabled": True}}}


def broken_rules(page):
    found = Axe().run(page, options=OPTIONS).response["violations"]
    return [(rule["id"], rule["help"], [node["target"] for node in rule["nodes"]][:4]) for rule in found]


@pytest.mark.parametrize("width, dark", [("wide", False), ("narrow", True)])
def test_every_page_is_accessible_fits_its_window_and_keeps_hostile_texts_inert(canned, tabs, width, dark):
    tab = tabs(canned, width=WIDTHS[width], dark=dark).sign_in()
    for address in PAGES + MORE:
        page = tab.go(address)
        assert not broken_rules(page), address
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0, f"{address} is wider than its window"


def test_views_of_a_request_are_accessible(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go(REQUEST)
    for name in ["Why", "Cost", "Concurrent", "Content", "JSON"]:
        page.get_by_role("tab", name=name, exact=True).click()
        tab.settle()
        assert not broken_rules(page), name
    page.get_by_role("tab", name="Why").click()
    page.get_by_text("Most of the 1.92 s went to decoding").wait_for()
    page.get_by_text("What would have helped").wait_for()


def test_a_request_shows_its_content_and_takes_a_score(canned, tabs):
    page = tabs(canned).sign_in().go(REQUEST)
    page.get_by_role("tab", name="Content", exact=True).click()
    page.get_by_text("The end of the answer is missing").wait_for()
    page.get_by_role("button", name="Score", exact=True).click()
    page.get_by_label("Name").fill("tone")
    page.get_by_label("Value").fill("0.5")
    page.get_by_role("dialog").get_by_role("button", name="Score").click()
    page.get_by_role("cell", name="tone").wait_for()


def test_moderation_lists_calls_by_verdict_and_sets_what_is_recorded(canned, tabs, books):
    tab = tabs(canned).sign_in()
    page = tab.go("moderation")
    rows = page.get_by_role("table", name="Calls with verdicts, newest first").locator("tbody tr")
    assert rows.count() == 100
    page.get_by_role("button", name="Older calls").click()
    page.wait_for_function("() => document.querySelectorAll('main tbody tr').length > 200")
    assert rows.count() == 200

    page.get_by_label("Decided").select_option("Dry run")
    page.get_by_text("Dry run").nth(1).wait_for()
    tab.settle()
    shown = set(rows.locator(".badge").all_inner_texts())
    assert "Dry run" in shown and not shown & {"Stopped", "Redacted", "Flagged", "No verdict"}, shown
    assert "moderation=dry_run" in page.url

    page.get_by_label("Decided").select_option("Any")
    page.get_by_label("Rule").fill("personal-data")
    page.wait_for_url("**content_rule=personal-data**")
    tab.settle()
    assert set(rows.locator("b").all_inner_texts()) == {"personal-data"}
    page.get_by_label("Project", exact=True).fill("none-such")
    page.get_by_text("No call matches.").wait_for()

    page.get_by_role("button", name="Change the records of research").or_(page.get_by_title("Change the records of research")).first.click()
    page.get_by_label("What is recorded").select_option("nothing")
    page.get_by_label("Days").fill("3")
    page.get_by_role("button", name="Set records").click()
    page.get_by_text("Records are set.").wait_for()
    assert books.records[-1] == ("research", {"level": "nothing", "keep_seconds": 259_200})


def test_a_viewer_sees_the_content_policy_and_may_not_change_it(canned, tabs, books):
    books.role = "viewer"
    page = tabs(canned).sign_in().go("moderation")
    page.get_by_role("table", name="Content policy of projects").wait_for()
    assert page.get_by_title("Change the records of web").count() == 0


def test_a_request_shows_the_verdicts_of_content_rules(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go(f"requests/req_{20:032x}")
    page.get_by_role("tab", name="Moderation", exact=True).click()
    tab.settle()
    assert not broken_rules(page)
    request, answer = page.get_by_role("table", name="Verdicts on the request"), page.get_by_role("table", name="Verdicts on the answer")
    assert "Dry run" in request.inner_text() and HOSTILE in request.inner_text()
    shown = answer.inner_text()
    assert "Stopped" in shown and "120 ms" in shown and "$0.00021" in shown and "content_filter" in shown, shown
    assert "Passed" in shown and "judge guard" in shown, shown
    page = tab.go(f"requests/req_{21:032x}")
    assert page.get_by_role("tab", name="Moderation", exact=True).count() == 0, "no rule matched"


def test_a_project_takes_a_record_policy(canned, tabs, books):
    page = tabs(canned).sign_in().go("keys?tab=projects")
    page.get_by_text("Redacted · kept 7 days").wait_for()
    page.get_by_role("button", name="Records", exact=True).first.click()
    page.get_by_label("What is recorded").select_option("full")
    page.get_by_label("Days").fill("2")
    page.get_by_role("button", name="Set records").click()
    page.get_by_text("Records are set.").wait_for()
    assert books.records[-1][1] == {"level": "full", "keep_seconds": 172_800}


# What stands beyond the right edge of what cuts it off.
CUT_OFF = """() => [
  ...[...document.querySelectorAll('.long-row > div')].filter((cell) => cell.getBoundingClientRect().right > cell.closest('.long').getBoundingClientRect().right + 0.5),
  ...[...document.querySelectorAll('.wf-axis b')].filter((name) => name.scrollWidth > name.clientWidth || name.getBoundingClientRect().right > name.closest('.wf-axis').getBoundingClientRect().right + 0.5),
].map((node) => node.textContent)"""


@pytest.mark.parametrize("width", [1440, 1280, 1110, 1010, 800, 390])
def test_nothing_of_a_request_is_cut_off_at_the_right(canned, tabs, width):
    page = tabs(canned, width=width).sign_in().go("requests")
    page.wait_for_selector(".long-view .long-row")
    assert nothing(page, CUT_OFF) == []
    shown = page.locator(".long-head [role=columnheader]").all_inner_texts()
    assert shown[1:4] == ["Started", "Outcome", "Took"] and ("Charged" in shown) == (width > 600), shown
    page.evaluate("address => { location.hash = '#/' + address; }", REQUEST)
    page.wait_for_selector(".wf-axis")
    # A telephone shortens names within the axis, with an ellipsis.
    assert width < 400 or nothing(page, CUT_OFF) == []
    page.evaluate("location.hash = '#/requests'")
    page.wait_for_function(f"() => document.querySelectorAll('.long-head [role=columnheader]').length === {len(shown)}")


# What is wider than its place, or stands beyond the edge of what holds it. Texts that end in an ellipsis say their whole in a title.
TOO_WIDE = """() => {
  const own = [...document.querySelectorAll('main *, dialog *')].filter((node) => !node.closest('.off-screen') && node.clientWidth > 0);
  const cuts = (node) => { const style = getComputedStyle(node); return style.overflowX !== 'visible' && style.textOverflow !== 'ellipsis'; };
  const scrolls = own.filter((node) => cuts(node) && !['PRE', 'TEXTAREA', 'INPUT', 'SELECT', 'CANVAS'].includes(node.tagName) && node.scrollWidth > node.clientWidth + 1);
  const holder = (node) => node.closest('.table-wrap, .tile, .card, .facts, .split-side, dialog');
  const leaves = own.filter((node) => holder(node) && !node.closest('pre') && node.getBoundingClientRect().right > holder(node).getBoundingClientRect().right + 1);
  return [...scrolls, ...leaves].map((node) => `${node.tagName}.${node.className}: ${node.textContent.slice(0, 60)}`);
}"""


def nothing(page, script):
    """What a script finds. A table that was just drawn, as with each event of a live page, is laid out before the browser shows it: it is looked at again."""
    found = page.evaluate(script)
    for _ in range(600):
        if not found:
            break
        page.wait_for_timeout(50)
        found = page.evaluate(script)
    return found


def too_wide(page):
    """What is too wide."""
    return nothing(page, TOO_WIDE)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_table_and_no_figure_is_cut(canned, tabs, width):
    tab = tabs(canned, width=width).sign_in()
    for address in PAGES + MORE:
        page = tab.go(address)
        assert too_wide(page) == [], f"{address} at {width}"
        page.wait_for_function("() => [...document.querySelectorAll('.table-wrap')].every((wrap) => wrap.scrollWidth <= wrap.clientWidth)")
    # Dialogs with tables, too; and a table whose place becomes narrower while it is shown, and wider again.
    page = tab.go("money")
    page.get_by_role("button", name="Grants", exact=True).first.click()
    page.get_by_role("dialog").get_by_role("table").wait_for()
    assert too_wide(page) == []
    page.keyboard.press("Escape")
    for other in [1280, 390, 700, width]:
        page.set_viewport_size({"width": other, "height": 820})
        page.wait_for_function("() => [...document.querySelectorAll('.table-wrap')].every((wrap) => wrap.scrollWidth <= wrap.clientWidth)")
    is_cards = page.locator("table").first.evaluate("table => table.classList.contains('cards')")
    assert is_cards == (width < 600), "a table stays one where there is room"


def test_long_amounts_fit_their_tiles(canned, tabs, books):
    tab = tabs(canned, width=390).sign_in()
    page = tab.go("now")
    page.evaluate("document.querySelectorAll('.tile-value').forEach((value) => { value.textContent = '$12,345,678.123456789'; })")
    assert too_wide(page) == []
    page = tab.go("money?tab=ledger")
    page.evaluate("document.querySelectorAll('.tile-value').forEach((value) => { value.textContent = '−$12,345,678.123456789'; })")
    assert too_wide(page) == []
    page = tab.go("money")
    page.evaluate("document.querySelectorAll('.meter .num').forEach((value) => { value.textContent = '$12,345,678.123456789 of $112,345,678.00'; })")
    assert too_wide(page) == []


def test_a_stage_says_what_it_does_when_it_is_touched(canned, tabs):
    page = tabs(canned, width=390).sign_in().go("now")
    page.locator(".pipeline").get_by_role("button", name="prefill").click()
    page.get_by_text("prefill: Reads the prompt.").wait_for()
    assert not broken_rules(page)


def test_calls_say_whose_they_are(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("now")
    for caption in ["Calls in flight", "The newest calls that ended"]:
        shown = page.get_by_role("table", name=caption).inner_text()
        assert "green-service" in shown and "web" in shown and "key_7f3a2b" not in shown, shown
    page = tab.go("requests")
    page.wait_for_selector(".long-view .long-row")
    heads = page.locator(".long-head [role=columnheader]").all_inner_texts()
    row = dict(zip(heads, page.locator(".long-view .long-row").first.locator("[role=gridcell]").all_inner_texts(), strict=True))
    assert (row["Project"], row["Key"], row["User"]) == ("web", "green-service", "eva@example.com"), row
    page = tab.go("money?tab=spend")
    page.get_by_role("button", name="Key", exact=True).click()
    page.get_by_role("row", name=re.compile("web backend key_000000")).wait_for()


def test_keys_say_when_they_were_made_and_used_and_what_they_spent(canned, tabs):
    page = tabs(canned).sign_in().go("keys")
    row = lambda name: page.locator("tr", has_text=name).locator("td").all_inner_texts()  # noqa: E731
    heads = page.get_by_role("columnheader").all_inner_texts()
    first = dict(zip(heads, row("web backend"), strict=False))
    assert re.match(r"\d{4}-\d\d-\d\d\s+does not expire", first["Created"]) and first["Last used"] == "this hour" and first["Spent"] == "$1.00", first
    second = dict(zip(heads, row("ci"), strict=False))
    assert second["Last used"] == "2 d ago" and second["Spent"] == "$1.000000001", second
    third = dict(zip(heads, row("notebooks"), strict=False))
    assert re.search(r"expires\s+\d{4}-\d\d-\d\d", third["Created"]) and (third["Last used"], third["Spent"]) == ("never", "$0.00"), third
    page.get_by_role("button", name="Last used").click()
    assert page.get_by_role("row").nth(1).inner_text().startswith(("notebooks", "support bot"))


def test_dialogs_and_the_palette_are_accessible(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("keys")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").wait_for()
    assert not broken_rules(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="New key").click()
    page.get_by_role("dialog").wait_for()
    assert not broken_rules(page)


def test_nothing_is_shown_to_whoever_is_not_signed_in(canned, tabs):
    tab = tabs(canned)
    tab.page.goto(canned)
    tab.page.get_by_label("Operator key").wait_for()
    assert not broken_rules(tab.page)
    assert tab.page.locator(".shell").count() == 0
    provider = tab.page.get_by_role("link", name="Sign in with Acme")
    provider.wait_for()
    assert provider.get_attribute("href") == "/admin/v1/sign-in/acme"
    assert tab.page.locator(".sign-in-providers a").count() == 2 and not tab.page.evaluate("window.pwned")
    tab.page.get_by_label("Operator key").fill("hrop-wrong")
    tab.page.keyboard.press("Enter")
    tab.page.get_by_role("alert").get_by_text("That is no operator").wait_for()
    tab.page.get_by_label("Operator key").fill("hrop-right")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".shell")


def test_a_link_signs_in_and_leaves_the_address(canned, tabs):
    tab = tabs(canned).sign_in("hrlink-secret")
    assert "secret" not in tab.page.url
    assert not any("secret" in url for url in tab.fetched), "a fragment is never sent"
    kept = tab.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert "secret" not in kept and "c5rf" not in kept
    tab.page.get_by_role("button", name="Sign out").click()
    tab.page.get_by_label("Operator key").wait_for()


def test_ten_thousand_requests_are_a_few_rows_of_the_page(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("requests")
    view = page.locator(".long-view")
    seen = 0
    for _ in range(2_000):
        view.evaluate("view => { view.scrollTop = view.scrollHeight; }")
        page.wait_for_timeout(30)
        drawn = page.locator(".long-view .long-row").count()
        assert drawn < 80, drawn
        seen = int(page.locator(".long").get_attribute("aria-rowcount")) - 1
        if seen == ROWS:
            break
    assert seen == ROWS
    view.evaluate("view => { view.scrollTop = view.scrollHeight; }")
    page.wait_for_function(f"() => document.querySelector('.long-view [aria-rowindex=\"{ROWS + 1}\"]')")


def test_a_search_asks_the_server_and_stands_in_the_address(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("requests")
    with page.expect_request(lambda request: "outcome=refused" in request.url):
        page.get_by_label("Outcome").select_option("refused")
    page.wait_for_function("() => location.hash.includes('outcome=refused')")
    page.get_by_text("1 000 requests".replace(" ", "\u202f", 1)).or_(page.get_by_text("500 or more")).first.wait_for()
    page.reload()
    page.wait_for_selector(".long-row")
    assert page.get_by_label("Outcome").input_value() == "refused"


def test_the_list_follows_an_address_that_changes(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("requests?outcome=failed")
    page.wait_for_selector(".long-view .long-row")
    shown = lambda: page.locator(".long-view .long-row .badge").all_inner_texts()  # noqa: E731
    assert all(text.startswith("failed") for text in shown())
    with page.expect_request(lambda request: "outcome=refused" in request.url and "text=No" in request.url):
        page.evaluate("location.hash = '#/requests?outcome=refused&text=No'")
    page.wait_for_function("() => document.querySelector('.long-view .long-row .badge') && [...document.querySelectorAll('.long-view .long-row .badge')].every((badge) => badge.textContent.startsWith('refused'))")
    assert page.get_by_label("Outcome").input_value() == "refused" and page.get_by_label("Error contains").input_value() == "No"
    # Back and forward are changes of the address like any other.
    page.go_back()
    page.wait_for_function("() => document.querySelectorAll('.long-view .long-row .badge').length > 5 && [...document.querySelectorAll('.long-view .long-row .badge')].every((badge) => badge.textContent.startsWith('failed'))")
    assert page.get_by_label("Outcome").input_value() == "failed" and page.get_by_label("Error contains").input_value() == ""
    page.evaluate("location.hash = '#/requests'")
    page.wait_for_function("() => [...document.querySelectorAll('.long-view .long-row .badge')].some((badge) => badge.textContent === 'completed')")
    assert page.get_by_label("Outcome").input_value() == ""
    # A search and a request at once; a request alone leaves the list.
    page.evaluate(f"location.hash = '#/{REQUEST}?outcome=cancelled&last=24h'")
    page.get_by_role("table", name="Stages of the call").wait_for()
    page.wait_for_function("() => document.querySelector('.long-view .long-row .badge') && [...document.querySelectorAll('.long-view .long-row .badge')].every((badge) => badge.textContent === 'cancelled')")
    assert page.get_by_label("When").input_value() == "24h"
    page.evaluate(f"location.hash = '#/{REQUEST[:-1]}2'")
    page.wait_for_timeout(200)
    assert page.get_by_label("Outcome").input_value() == "cancelled" and set(shown()) == {"cancelled"}


def test_forms_begin_with_what_was_used_last(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("playground")
    page.get_by_label("Charge to project").select_option("research")
    page.get_by_label("Model", exact=True).select_option("qwen3-0.6b")
    ask(page, "Remember me")
    page.get_by_text("until it ends.").wait_for()
    # Another conversation, another page.
    page.evaluate("localStorage.removeItem('headrace.playground')")
    page.reload()
    page.wait_for_selector(".pg-input")
    assert (page.get_by_label("Charge to project").input_value(), page.get_by_label("Model", exact=True).input_value()) == ("research", "qwen3-0.6b")
    page = tab.go("prompt")
    assert page.get_by_label("Model", exact=True).input_value() == "qwen3-0.6b"
    page = tab.go("keys")
    page.get_by_role("button", name="New key").click()
    assert page.get_by_label("Project").input_value() == "research"
    page.get_by_label("Project").select_option("web")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="New key").click()
    assert page.get_by_label("Project").input_value() == "web"


def test_a_fresh_browser_begins_with_default_and_a_model_that_is_ready(canned, tabs, books):
    books.projects = ["aaa", "default", "web"]
    books.not_ready = {"headrace-demo"}
    page = tabs(canned).sign_in().go("playground")
    page.wait_for_selector(".pg-input")
    assert (page.get_by_label("Charge to project").input_value(), page.get_by_label("Model", exact=True).input_value()) == ("default", "qwen3-0.6b")


def test_the_list_goes_by_keys_and_two_requests_compare(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("requests")
    page.locator(".long-view .long-row").first.focus()
    page.keyboard.press("c")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("c")
    page.keyboard.press("Enter")
    page.get_by_role("table", name="Stages of the call").wait_for()
    assert page.url.endswith("req_00000000000000000000000000000002")
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("Two requests compared").wait_for()


def test_the_palette_leads_everywhere(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("now")
    for typed, address in [("audit", "audit"), ("req_0123", "requests/req_0123"), ("create a key", "keys")]:
        page.keyboard.press("Control+k")
        page.keyboard.type(typed)
        page.keyboard.press("Enter")
        page.wait_for_function(f"() => location.hash.startsWith('#/{address}')")
        if address == "keys":
            # The form opens once the page has read what it needs.
            page.wait_for_selector("dialog[open]")
            page.keyboard.press("Escape")
            page.wait_for_selector("dialog[open]", state="detached")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.wait_for_function("() => location.hash === '#/now'")


def test_the_palette_opens_again_before_the_browser_has_said_that_it_closed(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("now")
    open_again = page.evaluate("""() => {
        const press = (target, key, ctrlKey = false) => target.dispatchEvent(new KeyboardEvent('keydown', { key, ctrlKey, bubbles: true, cancelable: true }));
        press(document, 'k', true);
        press(document.querySelector('.palette input'), 'Enter');
        press(document, 'k', true);
        press(document, 'k', true);
        return document.querySelectorAll('.palette[open]').length;
    }""")
    assert open_again == 1
    page.wait_for_function("() => document.querySelectorAll('.palette').length === 1")
    page.keyboard.type("audit")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash === '#/audit'")


def test_a_viewer_is_offered_only_what_a_viewer_may(canned, tabs, books):
    books.role = "viewer"
    tab = tabs(canned).sign_in()
    page = tab.go("keys")
    names = page.locator(".side a").all_inner_texts()
    assert "Playground" not in names and "Audit" not in names and "Requests" in names
    for act in ["New key", "Revoke", "Limits"]:
        assert page.get_by_role("button", name=act, exact=True).count() == 0, act
    page.keyboard.press("Control+k")
    page.keyboard.type("create")
    assert page.get_by_role("option", name="Create a key").count() == 0


def test_a_key_is_made_shown_once_and_revoked(canned, tabs, books):
    tab = tabs(canned).sign_in()
    page = tab.go("keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_role("button", name="Create key").click()
    page.get_by_role("alert").get_by_text("A key needs a name").wait_for()
    page.get_by_label("Name", exact=True).fill("robot")
    page.get_by_role("button", name="Create key").click()
    page.get_by_text("sk-shown-once-0123456789").wait_for()
    page.get_by_role("button", name="I have it").click()
    tab.settle()
    assert "sk-shown-once" not in page.content()
    page.get_by_label("Find").fill("robot")
    page.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    page.wait_for_function("() => document.querySelector('.toasts')?.textContent.includes('Revoked')")
    assert books.keys[-1]["name"] == "robot" and books.keys[-1]["revoked"]


def test_a_key_is_rotated_and_its_new_secret_is_shown_once(canned, tabs, books):
    tab = tabs(canned).sign_in()
    page = tab.go("keys")
    page.get_by_role("button", name="Rotate", exact=True).first.click()
    page.get_by_label("Hours").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    page.get_by_text("sk-rotated-once-0123456789").wait_for()
    page.get_by_role("button", name="I have it").click()
    tab.settle()
    assert "sk-rotated-once" not in page.content()
    assert page.get_by_text("former secret until").count() == 1


def test_a_user_is_created_gets_a_role_and_is_deactivated(canned, tabs, books):
    tab = tabs(canned).sign_in()
    page = tab.go("users")
    page.get_by_role("button", name="New user").click()
    page.get_by_label("Name", exact=True).fill("robin")
    page.get_by_label("Role", exact=True).select_option("billing")
    page.get_by_role("button", name="Create user").click()
    row = page.get_by_role("row").filter(has_text="robin")
    row.get_by_text("billing").wait_for()
    row.get_by_role("button", name="Deactivate").click()
    page.get_by_role("dialog").get_by_role("button", name="Deactivate").click()
    row.get_by_text("not active").wait_for()
    assert not books.users[-1]["active"] and books.users[-1]["role"] == "billing"
    row.get_by_role("button", name="Activate").click()
    row.get_by_role("button", name="Deactivate").wait_for()
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    row.wait_for(state="detached")
    assert all(user["name"] != "robin" for user in books.users)


def test_a_tier_is_created_and_assigned(canned, tabs, books):
    tab = tabs(canned).sign_in()
    page = tab.go("tiers")
    page.get_by_role("button", name="New tier").click()
    page.get_by_label("Name", exact=True).fill("gold")
    page.get_by_label("Context").fill("4096")
    page.get_by_label("Reasoning").select_option("no")
    page.get_by_role("button", name="Create tier").click()
    row = page.get_by_role("row").filter(has_text="gold")
    row.wait_for()
    assert (books.tiers[-1]["max_context_tokens"], books.tiers[-1]["reasoning"]) == (4096, False)
    row.get_by_role("button", name="Assign").click()
    page.get_by_label("To", exact=True).select_option("projects/web")
    page.get_by_role("dialog").get_by_role("button", name="Assign").click()
    page.wait_for_function("() => document.querySelector('.toasts')?.textContent.includes('Assigned')")
    assert books.assigned == [("projects", "web", "gold")]


def test_a_budget_is_set_raised_and_removed(canned, tabs, books):
    tab = tabs(canned).sign_in()
    page = tab.go("budgets")
    page.get_by_text("from the settings").wait_for()
    page.get_by_role("button", name="New budget").click()
    page.get_by_label("Name", exact=True).fill("calls")
    page.get_by_label("Counts", exact=True).select_option("key")
    page.get_by_label("Measure", exact=True).select_option("requests")
    page.get_by_label("Limit", exact=True).fill("100")
    page.get_by_label("In", exact=True).select_option("day")
    page.get_by_label("Beyond the limit").select_option("soft")
    page.get_by_label("Alerts at").fill("50, 90 %")
    page.get_by_role("button", name="Set budget").click()
    row = page.get_by_role("row").filter(has_text="calls")
    row.get_by_text("100 requests per day").wait_for()
    row.get_by_text("alert only").wait_for()
    made = next(rule for rule in books.budgets if rule["name"] == "calls")
    assert (made["scope"], made["window"], made["hard"], made["thresholds"]) == ("key", "day", False, [50, 90])
    row.get_by_role("button", name="Raise").click()
    page.get_by_label("Limit meanwhile").fill("500")
    page.get_by_label("For", exact=True).select_option("1")
    page.get_by_role("dialog").get_by_role("button", name="Raise").click()
    row.get_by_text("raised to 500").wait_for()
    assert books.raises == [("calls", {"limit": "500", "seconds": 3600})]
    # A rule of the settings is raised here, and changed there.
    of_settings = page.get_by_role("row").filter(has_text="from the settings")
    assert of_settings.get_by_role("button").all_inner_texts() == ["Raise"]
    page.get_by_role("tab", name="Use").click()
    page.get_by_text("$20.00 of $25.00").wait_for()
    page.get_by_role("tab", name="Alerts").click()
    page.get_by_role("cell").filter(has_text="100 %").first.wait_for()
    page.get_by_role("tab", name="Rules").click()
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    row.wait_for(state="detached")
    assert all(rule["name"] != "calls" for rule in books.budgets)


def test_gateways_are_listed_with_their_share_and_silent_ones_are_named(canned, tabs):
    page = tabs(canned).sign_in().go("gateways")
    north = page.get_by_role("row").filter(has_text="north")
    north.get_by_text("answers this page").wait_for()
    assert "60" in north.inner_text() and north.locator(".meter").count() == 1
    south = page.get_by_role("row").filter(has_text="south")
    south.get_by_text("no answer within 2 s").wait_for()
    assert south.locator(".meter").count() == 0
    page.get_by_text("dead", exact=True).wait_for()


def test_webhooks_are_shown_and_tested(canned, tabs):
    page = tabs(canned).sign_in().go("budgets?tab=webhooks")
    mail = page.get_by_role("row").filter(has_text="mail").filter(has_text="gone")
    mail.get_by_role("button", name="Resume").wait_for()
    ops = page.get_by_role("row").filter(has_text="ops").filter(has_text="active")
    ops.get_by_role("button", name="Test").click()
    page.get_by_text("ops: status 204").wait_for()


def test_a_draft_becomes_a_final_invoice(canned, tabs):
    page = tabs(canned).sign_in().go("invoices")
    page.get_by_role("row").filter(has_text="INV-1").get_by_role("link", name="CSV").wait_for()
    page.get_by_role("button", name="Draft of a month").click()
    page.get_by_role("textbox", name="Month").fill("2026-11")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("button", name="Make it final").click()
    page.get_by_role("dialog").get_by_role("button", name="Make it final").click()
    page.get_by_text("INV-3 is final.").wait_for()


def test_a_new_keys_only_sight_does_not_close_without_a_word(canned, tabs):
    page = tabs(canned).sign_in().go("keys")
    page.get_by_role("button", name="New key").click()
    page.get_by_label("Name", exact=True).fill("robot")
    page.get_by_role("button", name="Create key").click()
    secret = page.get_by_text("sk-shown-once-0123456789")
    secret.wait_for()
    for _ in range(3):
        page.keyboard.press("Escape")
        page.get_by_role("alert").get_by_text("The secret is shown only once.").wait_for()
        assert secret.is_visible()
    page.get_by_role("dialog").get_by_role("button", name="Close", exact=True).click()
    assert secret.is_visible() and not broken_rules(page)
    # A browser that closes a dialog by itself.
    page.evaluate("document.querySelector('dialog').close()")
    page.get_by_role("alert").get_by_text("The secret is shown only once").wait_for()
    assert secret.is_visible()
    page.get_by_role("button", name="Close anyway").click()
    page.wait_for_selector("dialog", state="detached")
    # Other dialogs close as ever.
    page.get_by_role("button", name="New key").click()
    # The form opens once the page has read what it needs.
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


def test_the_list_of_keys_says_what_they_do(canned, tabs):
    page = tabs(canned).sign_in().go("now")
    page.keyboard.press("?")
    shown = page.get_by_role("dialog").inner_text()
    assert re.search(r"Enter\s+Playground: send; Shift Enter starts a line, Esc stops", shown) and "Ctrl\nEnter" not in shown


def test_the_audit_log_and_a_statement_are_words(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("audit")
    rows = [row.locator("td").all_inner_texts() for row in page.locator("tbody tr").all()[:4]]
    assert [row[1] for row in rows][:2] == ["ada", "config"] and [row[2] for row in rows] == ["Key created", "Credit granted", "Canary rolled back", "new thing"], rows
    assert rows[0][3] == "web backend", "a key by its name"
    assert rows[0][4] == "arm qwen3-0.6b, calls 100, amount $2.50, why failed 9, of 100" and rows[2][4] == "no limits", rows
    page.get_by_label("Find in the loaded entries").fill("canary rolled")
    assert set(page.locator("tbody tr td:nth-child(3)").all_inner_texts()) == {"Canary rolled back"}
    page = tab.go("money?tab=statement")
    page.get_by_text("charged to project").wait_for()
    shown = page.locator("main").inner_text()
    assert "$12.00 charged to project" in shown and "of organisation acme. The month is not over yet" in shown and "Input from the cache" in shown, shown
    for raw in ["object", "closed", "false", "currency", "price_per_million", "cached_input"]:
        assert raw not in re.sub(r"As JSON.*", "", shown, flags=re.S), raw


def test_charts_have_a_past_when_they_are_opened(canned, tabs):
    page = tabs(canned).sign_in().go("now")
    points = lambda label: int(page.locator(".chart", has=page.get_by_role("img", name=label)).get_attribute("data-points"))  # noqa: E731
    assert points("Tokens a second over the last five minutes") >= 55 and points("Time to first token") >= 55
    assert points("Spend, last 24 hours") == 24, "an hour without a call is an hour"
    for width in [1280, 390]:
        page.set_viewport_size({"width": width, "height": 820})
        page.wait_for_timeout(150)
        assert too_wide(page) == []
    # The pointer over a chart says the moment and the values.
    page.locator(".chart .u-over").first.hover()
    page.locator(".legend", has_text="generated").get_by_text(re.compile(r"\d\d:\d\d:\d\d")).wait_for()
    page = tabs(canned).sign_in().go("money?tab=spend")
    page.get_by_label("Over", exact=True).select_option("1")
    page.wait_for_function("() => document.querySelector('.chart')?.dataset.points === '25'")


def test_reasons_of_the_cache_are_words(canned, tabs):
    page = tabs(canned).sign_in().go("cache")
    page.get_by_text("Differs from an earlier prompt").wait_for()
    page.get_by_text("Removed to make room").wait_for()
    codes = set(re.findall(r'Self::\w+ => "([a-z_]+)"', (ROOT / "crates/domain/src/trace.rs").read_text().split("impl MissReason", 1)[1].split("\n}\n", 1)[0]))
    known = page.evaluate("async (codes) => { const { reasonOf } = await import('/js/cache-misses.js'); return codes.filter((code) => reasonOf(code)[1] === ''); }", sorted(codes))
    assert len(codes) >= 7 and known == [], "a reason without a word"


MARKDOWN = f"""MD
# Steps

Do **this** and *that*, not ~~those~~; call `f(x)` or snake_case_name:
second line

1. First
   - inner `a`
   - inner b
2. Second

> Quoted
> twice

| Name | Value |
|---|--:|
| a | **1** |

```python
def f(x):
    return x * 2  # **not bold**
```

See [the docs](https://example.com/a_b?c=1) and https://example.com/x_y_z.
[bad](javascript:window.pwned=1) ![tracker](https://evil.example/x.png) [data](data:text/html,x) {HOSTILE}
2 * 3 * 4 and a_b_c
"""


def test_answers_are_drawn_as_markdown_and_never_as_markup(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("playground")
    ask(page, MARKDOWN)
    page.locator(".figures").wait_for()
    answer = page.locator(".turn.assistant .md")
    count = lambda what: answer.locator(what).count()  # noqa: E731
    assert (count("h3"), count("ol > li"), count("ol ul > li"), count("blockquote"), count("table tbody tr"), count("pre")) == (1, 2, 2, 1, 1, 1)
    assert answer.locator("p > strong").inner_text() == "this" and answer.locator("p > em").inner_text() == "that" and answer.locator("del").inner_text() == "those"
    assert answer.locator("pre").inner_text() == "def f(x):\n    return x * 2  # **not bold**"
    assert [link.get_attribute("href") for link in answer.get_by_role("link").all()] == ["https://example.com/a_b?c=1", "https://example.com/x_y_z", "https://evil.example/x.png"]
    assert all(link.get_attribute("rel") == "noopener noreferrer nofollow" for link in answer.get_by_role("link").all())
    assert count("img, script, iframe, style, object") == 0
    text = answer.inner_text()
    for plain in [HOSTILE.split("\u202e")[0], "[bad](javascript:window.pwned=1)", "[data](data:text/html,x)", "snake_case_name", "2 * 3 * 4 and a_b_c"]:
        assert plain in text, plain
    assert not broken_rules(page)
    page.get_by_label("Show answers as plain text").check()
    assert page.locator(".turn.assistant .answer-text").inner_text().startswith("MD\n# Steps")
    # The model is sent the words as they were.
    with page.expect_request(lambda request: request.url.endswith("chat/completions")) as sent:
        ask(page, "And now?")
    assert sent.value.post_data_json["messages"][1]["content"] == MARKDOWN


def test_markdown_that_closes_nothing_is_text_and_takes_no_long_time(canned, tabs):
    page = tabs(canned).sign_in().go("now")
    pieces = ["*", "**", "_a ", "*a ", "[", "![", "[x](", "`a", "``` ", "> ", ">", "- ", "- a\n", "  - a\n", "# ", "|", "| a |\n", "|-", "https://", "\\", "~~a", "1. a\n\n", " ", "\n", "[a](b", "**a*", "| a |\n| - |" + " " * 900]
    drawn = page.evaluate("""async (pieces) => {
        const { markdown } = await import('/js/playground/markdown.js');
        return pieces.map((piece) => markdown(piece.repeat(Math.floor(150000 / piece.length))).querySelectorAll('img, script').length);
    }""", pieces)
    assert set(drawn) == {0}
    cases = {"**open": "**open", "a * b": "a * b", "`code": "`code", "[x](": "[x](", "\\*a\\*": "*a*", "***x***": None, "__init__.py": "__init__.py", "": ""}
    for source, expected in cases.items():
        text = page.evaluate("async (source) => (await import('/js/playground/markdown.js')).markdown(source).textContent", source)
        assert expected is None or text == expected, (source, text)


def test_errors_say_the_way_out_and_retry(canned, tabs, books):
    tab = tabs(canned).sign_in()
    books.broken.add("keys")
    page = tab.go("keys")
    page.get_by_role("alert").get_by_text("Look at the disk, then try again.").wait_for()
    assert not broken_rules(page)
    books.broken.clear()
    page.get_by_role("button", name="Retry").click()
    page.get_by_text("web backend").wait_for()


def test_times_are_local_or_utc_and_colours_are_chosen(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go(REQUEST)
    started = lambda: page.locator(".facts time").first.inner_text()  # noqa: E731
    assert started() == "2026-11-21 10:34:08"
    page.get_by_role("button", name="Local").click()
    page.reload()
    tab.settle()
    page.wait_for_selector(".facts time")
    assert started() == "2026-11-21 01:34:08"
    ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = ground()
    for _ in range(2):
        page.locator("[aria-label$=': change']").click()
    assert ground() != light


def ask(page, text):
    page.get_by_label("Message").fill(text)
    page.get_by_label("Message").press("Enter")


def test_enter_ten_times_and_a_reload_are_one_execution(canned, tabs, books):
    tab = tabs(canned).sign_in()
    page = tab.go("playground")
    page.get_by_label("Message").fill("Only once")
    page.evaluate("""() => { const box = document.querySelector('.pg-input');
        for (let at = 0; at < 10; at++) box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true, cancelable: true })); }""")
    page.get_by_text("Answer 1").wait_for()
    page.reload()
    page.get_by_text("until it ends.").wait_for()
    page.get_by_text("replayed, not charged again").wait_for()
    assert len(books.executions) == 1
    page.reload()
    page.get_by_text("until it ends.").wait_for()
    page.wait_for_timeout(200)
    assert len(books.executions) == 1, "an answer that is whole is not asked for again"
    assert page.locator(".turn.user").count() == 1


def test_a_draft_survives_a_reload(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("playground")
    page.get_by_label("Message").fill("half a thou")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.3")
    page.reload()
    page.wait_for_selector(".pg-input")
    assert page.get_by_label("Message").input_value() == "half a thou"
    assert page.get_by_label("System prompt").input_value() == "Be brief."
    assert page.get_by_label("Temperature").input_value() == "0.3"


def test_regenerating_is_a_new_call_and_two_models_answer_one_prompt(canned, tabs, books):
    tab = tabs(canned).sign_in()
    page = tab.go("playground")
    page.get_by_role("button", name="Two models").click()
    ask(page, "Both of you")
    page.wait_for_function("() => document.querySelectorAll('.figures').length === 2")
    assert len(books.executions) == 2 and page.locator(".turn.user").count() == 2
    assert not broken_rules(page)
    page.get_by_role("button", name="Answer once more").first.click()
    page.get_by_text("Answer 3").wait_for()
    page.wait_for_function("() => document.querySelectorAll('.figures').length === 2")
    assert len(books.executions) == 3


def test_tools_are_answered_by_the_reader(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("playground")
    page.get_by_text("Tools", exact=True).click()
    page.locator("details", has_text="Functions").get_by_role("button", name="Insert an example").click()
    page.get_by_label("get_weather answers").fill('{"temp_c": 21}')
    ask(page, "Weather in Oslo?")
    page.get_by_label("Result of get_weather").wait_for()
    assert page.get_by_label("Result of get_weather").input_value() == '{"temp_c": 21}'
    with page.expect_request(lambda request: request.url.endswith("chat/completions")) as sent:
        page.get_by_role("button", name="Send results").click()
    messages = sent.value.post_data_json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] and messages[2]["content"] == '{"temp_c": 21}'
    page.get_by_text("until it ends.").wait_for()


def test_a_refusal_stands_by_the_call_and_nothing_is_lost(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("playground")
    page.get_by_label("Temperature").fill("9")
    ask(page, "Hot")
    page.get_by_role("alert").get_by_text("Take 2 or less.").wait_for()
    page.get_by_label("Temperature").fill("1")
    page.get_by_role("button", name="Retry").click()
    page.get_by_text("until it ends.").wait_for()


def test_alternatives_are_under_the_pointer_and_tokens_have_ids(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("playground")
    page.get_by_text("More parameters").click()
    page.get_by_label("Alternatives").fill("2")
    ask(page, "How sure?")
    page.locator(".heat").nth(3).hover()
    page.locator(".token-tip tr").nth(1).wait_for()
    assert not broken_rules(page)
    page.get_by_role("button", name="Tokens", exact=True).click()
    page.locator(".token.special").first.wait_for()
    page.locator(".token").nth(4).hover()
    page.get_by_text(re.compile(r"Token 5 · id 4")).wait_for()
    page.locator(".cache-edge").get_by_text("a warm cache gives the 4 tokens above").wait_for()
    page.locator(".lens").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text(re.compile(r"Token 6 · id 5 .* computed")).wait_for()
    assert not broken_rules(page)


def test_tools_for_the_prompt_show_tokens_costs_and_findings(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("prompt")
    page.get_by_role("button", name="Show").click()
    page.locator(".token.special").first.wait_for()
    page.get_by_text("system, message 1").first.wait_for()
    page.get_by_text("$0.0000047, or $0.0000015 from a warm cache").wait_for()
    assert page.locator(".cache-edge").count() == 0
    page.get_by_label("A cached prompt").fill("What is a KV cache?")
    page.get_by_role("button", name="Show").click()
    page.locator(".cache-edge").wait_for()
    assert not broken_rules(page)
    page.get_by_label("The call").fill("{ no JSON")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("alert").get_by_text("The call is not JSON").wait_for()
    page.get_by_role("tab", name="Tokens of a text").click()
    page.get_by_role("button", name="Count").click()
    page.locator(".token").first.wait_for()
    assert not broken_rules(page)
    page.get_by_role("tab", name="Doctor").click()
    page.get_by_text("bos_doubled").wait_for()
    assert "tab=doctor" in page.url and not broken_rules(page)


def test_the_call_as_code_is_code(canned, tabs):
    tab = tabs(canned).sign_in()
    page = tab.go("playground")
    said = "It's \"quoted\" $HOME `x`\nand \\ long"
    page.get_by_label("Message").fill(said)
    page.get_by_role("button", name="Code", exact=True).click()
    shown = lambda name: (page.get_by_role("tab", name=name).click(), page.get_by_role("dialog").locator("pre").inner_text())[1]  # noqa: E731
    words = shlex.split(shown("curl").replace("\\\n", ""))
    assert json.loads(words[words.index("-d") + 1])["messages"][0]["content"] == said
    tree = ast.parse(shown("Python"))
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "create")
    given = {word.arg: word.value for word in call.keywords}
    assert ast.literal_eval(given["messages"])[0]["content"] == said and "model" in given
    assert "baseURL" in shown("TypeScript")


def test_the_first_page_is_light_and_comes_from_here(canned, tabs):
    tab = tabs(canned)
    sizes = {}
    tab.page.on("response", lambda answer: sizes.update({answer.url: int(answer.headers.get("content-length") or 0)}) if "/admin/" not in answer.url else None)
    tab.sign_in()
    tab.settle()
    tab.page.wait_for_selector(".chart canvas")
    assert sum(sizes.values()) <= 200 * 1024, sizes
