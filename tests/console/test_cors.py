"""A page of another origin calls the API, as a browser lets it: with real preflights, from a page that the server does not serve."""

import http.server
import threading

import pytest

from test_real import KEY, House

PAGE = b"<!doctype html><html lang=en><title>Elsewhere</title><body>A page of somebody else.</body></html>"
ASK = """async ([url, key, stream]) => {
  try {
    const body = JSON.stringify({ model: 'headrace-demo', max_tokens: 8, stream, messages: [{ role: 'user', content: 'Hello' }] });
    const answer = await fetch(url + '/v1/chat/completions', { method: 'POST', headers: { authorization: 'Bearer ' + key, 'content-type': 'application/json', 'x-stainless-lang': 'js' }, body });
    return { status: answer.status, text: await answer.text(), id: answer.headers.get('x-request-id') };
  } catch (error) { return { refused: error.name }; }
}"""


class Elsewhere(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_):
        pass


@pytest.fixture
def origins():
    """Two origins of somebody else: ports of their own."""
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    for server in servers:
        server.shutdown()


def ask(browser, origin, url, key=KEY, stream=False):
    context = browser.new_context()
    page = context.new_page()
    page.goto(origin)
    told = page.evaluate(ASK, [url, key, stream])
    context.close()
    return told


def test_a_page_of_an_allowed_origin_calls_and_reads_and_no_other_does(tmp_path, browser, origins):
    allowed, other = origins
    house = House(tmp_path, "--set", f"server.cors={allowed}")
    try:
        told = ask(browser, allowed, house.url)
        assert told["status"] == 200 and told["id"].startswith("req_") and "chat.completion" in told["text"]
        streamed = ask(browser, allowed, house.url, stream=True)
        assert streamed["status"] == 200 and streamed["text"].rstrip().endswith("data: [DONE]")
        wrong = ask(browser, allowed, house.url, key="sk-wrong")
        assert wrong["status"] == 401 and "invalid_api_key" in wrong["text"], "a refusal can be read, too"
        assert ask(browser, other, house.url) == {"refused": "TypeError"}
    finally:
        house.stop()


def test_no_page_elsewhere_calls_by_default(tmp_path, browser, origins):
    house = House(tmp_path)
    try:
        assert ask(browser, origins[0], house.url) == {"refused": "TypeError"}
    finally:
        house.stop()
