"""Files, uploads, batches and moderations, as the official SDKs have them."""

import hashlib
import http.client
import json
import os
import time
import urllib.parse

import anthropic
import openai
import pytest
from conftest import MODEL, Server


def lines(*requests):
    return "".join(json.dumps(request) + "\n" for request in requests).encode()


def refused(call, status, code):
    with pytest.raises(openai.APIStatusError) as caught:
        call()
    assert (caught.value.status_code, caught.value.code) == (status, code), caught.value
    return caught.value


def other_key(server):
    """A key of another project."""
    server.run("projects", "create", "other")  # It may be there.
    made = server.run("keys", "create", "--project", "other", "--name", "other", "--json")
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)["value"]["secret"]


def test_a_file_is_kept_listed_given_back_and_removed(client):
    content = os.urandom(700_000)
    file = client.files.create(file=("../../etc/passwd", content), purpose="user_data")
    assert file.id.startswith("file-") and file.object == "file" and file.status == "processed"
    assert (file.filename, file.bytes, file.purpose) == ("passwd", len(content), "user_data")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == content
    assert client.files.wait_for_processing(file.id) == file
    assert [found.id for found in client.files.list(purpose="user_data")] == [file.id]
    assert list(client.files.list(purpose="vision")) == []
    gone = client.files.delete(file.id)
    assert gone.deleted and gone.id == file.id
    for look in [client.files.retrieve, client.files.content, client.files.delete]:
        refused(lambda: look(file.id), 404, "file_not_found")


def test_files_are_listed_in_pages_either_way(client):
    made = [client.files.create(file=(f"{at}.txt", b"x" * at), purpose="evals").id for at in range(5)]
    for order, expected in [("asc", made), ("desc", made[::-1])]:
        page = client.files.list(purpose="evals", order=order, limit=2)
        assert [file.id for file in page.data] == expected[:2] and page.has_more
        assert [file.id for file in page] == expected, "the SDK asks for one page after the other"
    for id in made:
        client.files.delete(id)


def test_a_file_says_until_when_it_is_kept(client):
    kept = client.files.create(
        file=("a.txt", b"a"), purpose="assistants", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert kept.expires_at == kept.created_at + 3600
    batch = client.files.create(file=("a.jsonl", b"{}\n"), purpose="batch")
    assert batch.expires_at == batch.created_at + 30 * 24 * 3600
    assert client.files.create(file=("b.txt", b""), purpose="vision").expires_at is None
    short = {"anchor": "created_at", "seconds": 60}
    error = refused(lambda: client.files.create(file=("a", b""), purpose="vision", expires_after=short), 400, "invalid_value")
    assert error.param == "expires_after.seconds"
    for file in client.files.list():
        client.files.delete(file.id)


def test_what_is_no_purpose_or_no_file_is_refused_by_name(client):
    for purpose in ["batch_output", "x"]:
        error = refused(lambda: client.files.create(file=("a", b"a"), purpose=purpose), 400, "invalid_value")
        assert error.param == "purpose"
    refused(lambda: client.files.create(file=("a", b"a"), purpose="vision", extra_body={"more": "x"}), 400, "unknown_parameter")
    refused(lambda: client.files.list(extra_query={"page": "2"}), 400, "bad_page")
    assert list(client.files.list()) == [], "nothing of what was refused is left"


def test_an_upload_is_put_together_in_the_order_that_is_said(client):
    parts = [os.urandom(300_000), os.urandom(10), os.urandom(1_200_000)]
    whole = b"".join(parts)
    upload = client.uploads.create(filename="big.bin", purpose="user_data", bytes=len(whole), mime_type="application/x")
    assert upload.status == "pending" and upload.expires_at == upload.created_at + 3600 and upload.file is None
    ids = [None] * 3
    for at in [2, 0, 1]:
        part = client.uploads.parts.create(upload.id, data=parts[at])
        assert part.upload_id == upload.id and part.object == "upload.part"
        ids[at] = part.id
    wrong = [
        ({"part_ids": ids[:2]}, "part_ids"),
        ({"part_ids": ids + ids[:1]}, "part_ids"),
        ({"part_ids": ["part_x", *ids]}, "part_ids"),
        ({"part_ids": ids, "md5": "0" * 32}, "md5"),
    ]
    for said, param in wrong:
        assert refused(lambda: client.uploads.complete(upload.id, **said), 400, "upload_mismatch").param == param
    done = client.uploads.complete(upload.id, part_ids=ids, md5=hashlib.md5(whole).hexdigest())
    assert done.status == "completed" and done.file.bytes == len(whole) and done.file.filename == "big.bin"
    assert client.files.content(done.file.id).read() == whole
    refused(lambda: client.uploads.parts.create(upload.id, data=b"x"), 400, "upload_not_pending")
    refused(lambda: client.uploads.complete(upload.id, part_ids=ids), 400, "upload_not_pending")
    refused(lambda: client.uploads.cancel(upload.id), 400, "upload_not_pending")
    client.files.delete(done.file.id)


def test_an_upload_that_is_given_up_leaves_nothing(client):
    upload = client.uploads.create(filename="a", purpose="vision", bytes=5, mime_type="a/b")
    part = client.uploads.parts.create(upload.id, data=b"12345")
    assert client.uploads.cancel(upload.id).status == "cancelled"
    refused(lambda: client.uploads.complete(upload.id, part_ids=[part.id]), 400, "upload_not_pending")
    refused(lambda: client.uploads.cancel("upload_x"), 404, "upload_not_found")
    assert list(client.files.list()) == []


def test_the_sdk_uploads_a_file_in_chunks_by_itself(client, tmp_path):
    path = tmp_path / "chunks.bin"
    path.write_bytes(os.urandom(1_000_000))
    done = client.uploads.upload_file_chunked(
        file=path, mime_type="application/octet-stream", purpose="user_data", part_size=300_000
    )
    assert done.status == "completed"
    assert client.files.content(done.file.id).read() == path.read_bytes()
    client.files.delete(done.file.id)


def test_another_project_is_told_nothing(server, client):
    file = client.files.create(file=("secret.txt", b"secret"), purpose="user_data")
    upload = client.uploads.create(filename="a", purpose="vision", bytes=5, mime_type="a/b")
    stranger = server.openai(api_key=other_key(server))
    assert list(stranger.files.list()) == []
    for look in [stranger.files.retrieve, stranger.files.content, stranger.files.delete]:
        refused(lambda: look(file.id), 404, "file_not_found")
    for look in [
        lambda: stranger.uploads.parts.create(upload.id, data=b"x"),
        lambda: stranger.uploads.complete(upload.id, part_ids=["x"]),
        lambda: stranger.uploads.cancel(upload.id),
    ]:
        refused(look, 404, "upload_not_found")
    assert client.files.content(file.id).read() == b"secret"
    client.files.delete(file.id)


# What no SDK sends.

BOUNDARY = "a-boundary"


def part(name, data, more=""):
    head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + data + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
PURPOSE = part("purpose", b"vision")
FILE = part("file", b"abc", '; filename="a"')


def send(server, body, headers=None, path="/v1/files"):
    """Bytes as they are; a body that is no bytes is sent in chunks for as long as the server reads."""
    where = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    headers = {
        "authorization": f"Bearer {server.key}",
        "content-type": f"multipart/form-data; boundary={BOUNDARY}",
        **(headers or {}),
    }
    try:
        connection.request("POST", path, body=body, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        pass  # It was refused before all of it was read.
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


HOSTILE = [
    ("no boundary", FILE, {"content-type": "multipart/form-data"}, 400, "bad_form"),
    ("a boundary without an end", FILE, {"content-type": "multipart/form-data; boundary=" + "b" * 5000}, 400, "bad_form"),
    ("no form", b"{}", {"content-type": "application/json"}, 400, "bad_form"),
    ("another boundary", FILE, {"content-type": "multipart/form-data; boundary=x"}, 400, "bad_form"),
    ("cut off in a field", PURPOSE + FILE[:-4], {}, 400, "bad_form"),
    ("cut off before its end", PURPOSE + FILE, {}, 400, "bad_form"),
    ("compressed", PURPOSE + FILE + END, {"content-encoding": "gzip"}, 415, "unsupported_encoding"),
    ("two files", PURPOSE + FILE + FILE + END, {}, 400, "unknown_parameter"),
    ("no file", PURPOSE + END, {}, 400, "missing_required_parameter"),
    ("no purpose", FILE + END, {}, 400, "missing_required_parameter"),
    ("a file without a name", PURPOSE + part("file", b"abc") + END, {}, 400, "bad_form"),
    ("a name that is a path alone", PURPOSE + part("file", b"abc", '; filename="../.."') + END, {}, 400, "empty_string"),
    ("a long purpose", part("purpose", b"x" * 5000) + END, {}, 400, "string_above_max_length"),
    ("a purpose that is no text", part("purpose", b"\xff") + END, {}, 400, "invalid_type"),
    ("ten gigabytes, by its word", b"", {"content-length": str(10 << 30)}, 413, "file_too_large"),
]


@pytest.mark.parametrize("body, headers, status, code", [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_form_is_refused_and_leaves_nothing(server, client, body, headers, status, code):
    answered, told = send(server, body, headers)
    assert (answered, told["error"]["code"]) == (status, code), told
    assert list(client.files.list()) == []


def test_what_has_no_end_is_cut_off_and_takes_no_memory(tmp_path_factory):
    configured = tmp_path_factory.mktemp("bounded")
    server = Server(configured, settings={"HEADRACE_OBJECTS__MAX_FILE": "4MiB", "HEADRACE_OBJECTS__MAX_FILE_BYTES_PER_PROJECT": "6MiB"})

    def endless(first):
        yield first
        while True:
            yield b"x" * 65536

    try:
        client = server.openai()
        with_name = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
        in_headers = f"--{BOUNDARY}\r\nx-header: ".encode()
        for first, status, code in [(with_name, 413, "file_too_large"), (in_headers, 400, "bad_form"), (b"", 400, "bad_form")]:
            answered, told = send(server, endless(first))
            assert (answered, told["error"]["code"]) == (status, code), told
        assert list(client.files.list()) == []
        # What was given up makes room again; what is kept has a bound of its own.
        client.files.create(file=("a", b"x" * (4 << 20)), purpose="vision")
        error = refused(lambda: client.files.create(file=("b", b"x" * (3 << 20)), purpose="vision"), 413, "objects_full")
        assert error.body["limit"]["limit"] == 6 << 20
        client.files.create(file=("b", b"x" * (1 << 20)), purpose="vision")
        with open(f"/proc/{server.process.pid}/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        assert peak < 400_000, f"{peak} kB"
    finally:
        server.stop()


# Batches. The demo model at a price of whole nano-dollars a token, so that what was charged is known to the last of them.

PRICED = f"""
[server]
metrics_listen = "127.0.0.1:0"

[[prices]]
model = "{MODEL}"
input = "1"
cached_input = "1"
output = "4"

[[prices]]
model = "{MODEL}"
tier = "batch"
input = "0.5"
cached_input = "0.5"
output = "2"
"""
BATCH_NANOS = {"input": 500, "output": 2000}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def priced(binary, tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("priced"), configuration=PRICED)
    granted = server.run("credit", "grant", "100", "--reference", "tests")
    assert granted.returncode == 0, granted.stderr + granted.stdout
    yield server
    server.stop()


def request(custom_id, url=CHAT, **body):
    messages = [{"role": "user", "content": "What is a KV cache?"}]
    usual = {"model": MODEL, "temperature": 0, "max_tokens": 4, **({"messages": messages} if url == CHAT else {})}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {**usual, **body}}


def create(client, content, endpoint=CHAT, window="24h", **options):
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window=window, **options)


def wait(client, batch, within=300, status=None):
    """Until a batch is over, or as far as that."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch.id)
        over = batch.status in ["completed", "failed", "expired", "cancelled"]
        if batch.status == status or (over and status is None):
            return batch
        assert not over, batch
        time.sleep(0.05)
    pytest.fail(f"the batch is not over after {within} s: {batch}")


def results(client, file):
    """The lines of a file by their ids; none has two."""
    if file is None:
        return {}
    told = [json.loads(line) for line in client.files.content(file).text.splitlines()]
    by_id = {line["custom_id"]: line for line in told}
    assert len(by_id) == len(told)
    return by_id


def balance(server):
    shown = server.run("credit", "show", "--json")
    assert shown.returncode == 0, shown.stderr
    (org,) = json.loads(shown.stdout)["value"]
    assert org["held"] == 0, "nothing is left held"
    return org["balance"]


def nanos(lines):
    """What answered lines cost at the batch's price."""
    usages = [line["response"]["body"]["usage"] for line in lines if line["response"]["status_code"] == 200]
    return sum(u["prompt_tokens"] * BATCH_NANOS["input"] + u["completion_tokens"] * BATCH_NANOS["output"] for u in usages)


def test_a_batch_answers_as_calls_do_at_its_own_price(priced):
    client = priced.openai()
    direct = client.chat.completions.create(**request("x")["body"])
    content = lines(request("good"), request("bad", max_tokens=-1), request("other", messages=[{"role": "user", "content": "Hi"}]))
    batch = create(client, content + b"\n", metadata={"topic": "test"})
    assert batch.object == "batch" and batch.status == "validating" and batch.endpoint == CHAT
    assert batch.metadata == {"topic": "test"} and batch.expires_at == batch.created_at + 24 * 3600
    done = wait(client, batch)
    assert done.status == "completed" and done.errors is None
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    assert done.in_progress_at and done.finalizing_at and done.completed_at
    good = results(client, done.output_file_id)
    assert set(good) == {"good", "other"}
    answer = good["good"]["response"]
    assert answer["status_code"] == 200 and good["good"]["error"] is None and good["good"]["id"].startswith("batch_req_")
    assert answer["body"]["choices"][0]["message"]["content"] == direct.choices[0].message.content
    bad = results(client, done.error_file_id)["bad"]["response"]
    assert bad["status_code"] == 400 and bad["body"]["error"]["param"] == "max_tokens"
    trace = priced.get(f"/v1/requests/{answer['request_id']}")
    assert trace["cost"]["tier"] == "batch"
    assert trace["cost"]["charged_nano_dollars"] == nanos([good["good"]])
    file = client.files.retrieve(done.output_file_id)
    assert file.purpose == "batch_output" and file.filename.endswith(".jsonl") and file.expires_at
    assert [found.id for found in client.batches.list(limit=1)][0] == batch.id


def test_a_batch_takes_completions_and_responses(priced):
    client = priced.openai()
    for endpoint, body in [
        ("/v1/completions", {"prompt": "A KV cache", "max_tokens": 3}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 3, "max_tokens": None}),
        ("/v1/embeddings", {"input": "Hi", "max_tokens": None, "temperature": None}),
    ]:
        asked = request("one", endpoint, **body)
        asked["body"] = {key: value for key, value in asked["body"].items() if value is not None}
        done = wait(client, create(client, lines(asked), endpoint))
        if endpoint == "/v1/embeddings":
            # The demo model is no encoder: that is the request's answer, and no failure of the batch.
            error = results(client, done.error_file_id)["one"]["response"]
            assert (error["status_code"], error["body"]["error"]["code"]) == (400, "wrong_kind_of_model"), error
            continue
        told = results(client, done.output_file_id)["one"]["response"]["body"]
        if endpoint == "/v1/responses":
            assert client.responses.retrieve(told["id"]).output == client.responses.retrieve(told["id"]).output
            assert told["status"] in ["completed", "incomplete"]
        else:
            assert told["choices"][0]["text"]


def test_what_no_batch_can_do_is_a_line_with_an_error(priced):
    client = priced.openai()
    asked = [request("stream", stream=True), request("model", model="nobody"), request("unknown", what=1)]
    done = wait(client, create(client, lines(*asked)))
    assert done.status == "completed" and done.output_file_id is None
    codes = {id: line["response"]["body"]["error"]["code"] for id, line in results(client, done.error_file_id).items()}
    assert codes == {"stream": "unsupported_value", "model": "model_not_found", "unknown": "unknown_parameter"}


def test_a_bad_file_fails_the_batch_with_its_lines(priced):
    client = priced.openai()
    bad = lines(request("a")) + b"{\n" + lines({**request("b"), "url": "/v1/embeddings"}, request("a"), {**request("c"), "method": "GET"})
    failed = wait(client, create(client, bad))
    assert failed.status == "failed" and failed.failed_at and failed.output_file_id is None
    told = {fault.line: fault.code for fault in failed.errors.data}
    assert told == {2: "invalid_json_line", 3: "mismatched_url", 4: "duplicate_custom_id", 5: "invalid_method"}
    assert failed.request_counts.total == 0
    empty = wait(client, create(client, b"\n\n"))
    assert [fault.code for fault in empty.errors.data] == ["empty_file"]
    refused(lambda: client.batches.cancel(empty.id), 409, "batch_ended")
    other = client.files.create(file=("a", b"{}"), purpose="vision")
    for ask, status, code in [
        (dict(input_file_id=other.id, endpoint=CHAT, completion_window="24h"), 400, "invalid_value"),
        (dict(input_file_id="file-x", endpoint=CHAT, completion_window="24h"), 404, "file_not_found"),
        (dict(input_file_id=other.id, endpoint="/v1/messages", completion_window="24h"), 400, "invalid_value"),
        (dict(input_file_id=other.id, endpoint=CHAT, completion_window="48h"), 400, "invalid_value"),
    ]:
        refused(lambda: client.batches.create(**ask), status, code)
    refused(lambda: client.batches.retrieve("batch_x"), 404, "batch_not_found")


def long_requests(count, tokens=200):
    """Requests that take a while, each with a prompt of its own."""
    return [request(f"r{at}", max_tokens=tokens, messages=[{"role": "user", "content": f"Tell me of {at}."}]) for at in range(count)]


def test_a_cancelled_batch_keeps_what_it_has(priced):
    client = priced.openai()
    batch = create(client, lines(*long_requests(2000)))
    while (told := client.batches.retrieve(batch.id)).request_counts.completed < 3:
        assert told.status in ["validating", "in_progress"], told
        time.sleep(0.05)
    ending = client.batches.cancel(batch.id)
    assert ending.status == "cancelling" and ending.cancelling_at
    done = wait(client, batch)
    assert done.status == "cancelled" and done.cancelled_at
    good, never = results(client, done.output_file_id), results(client, done.error_file_id)
    assert len(good) == done.request_counts.completed >= 3 and len(good) + len(never) == 2000
    assert {line["error"]["code"] for line in never.values()} == {"batch_cancelled"}
    refused(lambda: client.batches.cancel(batch.id), 409, "batch_ended")


def test_a_batch_ends_when_its_time_is_over(priced):
    client = priced.openai()
    # On a busy machine there may be no answer within the shorter windows.
    for window in ["2s", "6s", "20s", "60s"]:
        done = wait(client, create(client, lines(*long_requests(2000)), window=window))
        assert done.status == "expired" and done.expired_at >= done.expires_at
        good, never = results(client, done.output_file_id), results(client, done.error_file_id)
        assert len(good) + len(never) == 2000
        assert {line["error"]["code"] for line in never.values()} == {"batch_expired"}
        if good:
            break
    assert good


def test_calls_go_before_a_batch_and_others_see_nothing_of_it(priced):
    client = priced.openai()
    batch = create(client, lines(*long_requests(2000)))
    wait(client, batch, status="in_progress")
    # A call waits for none of the requests that wait: the batch makes little progress meanwhile.
    passed = []
    for _ in range(5):
        before = client.batches.retrieve(batch.id).request_counts.completed
        client.chat.completions.create(**request("x", max_tokens=16)["body"])
        passed.append(client.batches.retrieve(batch.id).request_counts.completed - before)
    assert min(passed) < 20, passed
    assert client.batches.retrieve(batch.id).status == "in_progress"
    stranger = priced.openai(api_key=other_key(priced))
    assert list(stranger.batches.list()) == []
    for look in [stranger.batches.retrieve, stranger.batches.cancel]:
        refused(lambda: look(batch.id), 404, "batch_not_found")
    client.batches.cancel(batch.id)
    wait(client, batch)


def test_money_a_killed_server_goes_on_with_a_batch_and_charges_nothing_twice(binary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("killed")
    server = Server(directory, configuration=PRICED)
    try:
        granted = server.run("credit", "grant", "100", "--reference", "tests")
        assert granted.returncode == 0, granted.stderr + granted.stdout
        # A batch may be over before it is seen under way three times. Then a longer one is begun.
        for count in [120, 480, 1920]:
            before = balance(server)
            client = server.openai()
            batch = create(client, lines(*long_requests(count, tokens=60)))
            kills = 0
            for at_least in [5, 30, 60]:
                while (told := client.batches.retrieve(batch.id)).request_counts.completed < at_least:
                    assert told.status in ["validating", "in_progress"], told
                    time.sleep(0.01)
                if told.status != "in_progress":
                    break
                server.process.kill()
                server.process.wait()
                kills += 1
                (directory / "data" / "address").unlink(missing_ok=True)
                server = Server(directory, configuration=PRICED)
                client = server.openai()
            done = wait(client, batch)
            assert done.status == "completed", done
            assert (done.request_counts.completed, done.request_counts.failed) == (count, 0)
            good = results(client, done.output_file_id)
            assert set(good) == {f"r{at}" for at in range(count)}
            after = balance(server)
            assert before - after == nanos(good.values())
            if kills == 3:
                break
        assert kills == 3
    finally:
        server.stop()


# Anthropic's.


def message(custom_id, **params):
    usual = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "What is a KV cache?"}]}
    return {"custom_id": custom_id, "params": {**usual, **params}}


def wait_for_messages(claude, batch, within=300):
    deadline = time.monotonic() + within
    while (batch := claude.messages.batches.retrieve(batch.id)).processing_status != "ended":
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def test_a_batch_of_messages_comes_with_its_requests_and_gives_their_results(priced):
    claude = priced.anthropic()
    direct = claude.messages.create(**message("x")["params"], extra_body={"temperature": 0})
    batch = claude.messages.batches.create(requests=[message("good", temperature=0), message("bad", max_tokens=-1), message("s", stream=True)])
    assert batch.id.startswith("msgbatch_") and batch.type == "message_batch"
    assert batch.processing_status == "in_progress" and batch.results_url is None
    done = wait_for_messages(claude, batch)
    counts = done.request_counts
    assert (counts.processing, counts.succeeded, counts.errored, counts.canceled, counts.expired) == (0, 1, 2, 0, 0)
    assert done.ended_at >= done.created_at and (done.expires_at - done.created_at).total_seconds() == 24 * 3600
    told = {line.custom_id: line.result for line in claude.messages.batches.results(batch.id)}
    assert told["good"].type == "succeeded" and told["good"].message.content == direct.content
    assert told["bad"].type == "errored" and told["bad"].error.error.type == "invalid_request_error"
    assert "stream" in told["s"].error.error.message
    assert [found.id for found in claude.messages.batches.list(limit=1)][0] == batch.id
    assert claude.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.retrieve(batch.id)


def test_batches_of_messages_are_cancelled_and_listed_in_pages(priced):
    claude = priced.anthropic()
    batch = claude.messages.batches.create(requests=[message(f"m{at}", max_tokens=200) for at in range(1000)])
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.batches.delete(batch.id)
    with pytest.raises(anthropic.AnthropicError):
        claude.messages.batches.results(batch.id)
    ending = claude.messages.batches.cancel(batch.id)
    assert ending.processing_status == "canceling" and ending.cancel_initiated_at
    done = wait_for_messages(claude, batch)
    assert done.request_counts.canceled > 0 and done.request_counts.succeeded + done.request_counts.canceled == 1000
    kinds = [line.result.type for line in claude.messages.batches.results(batch.id)]
    assert kinds.count("canceled") == done.request_counts.canceled and len(kinds) == 1000
    made = [batch.id] + [claude.messages.batches.create(requests=[message("a")]).id for _ in range(3)]
    newest_first = made[::-1]
    assert [found.id for found in claude.messages.batches.list(limit=2)][:4] == newest_first
    page = claude.messages.batches.list(limit=2, before_id=made[0])
    assert [found.id for found in page.data] == newest_first[1:3] and page.has_more
    for wrong in [[message("a"), message("a")], [message("a b")], []]:
        with pytest.raises(anthropic.BadRequestError):
            claude.messages.batches.create(requests=wrong)
    with pytest.raises(anthropic.NotFoundError):
        priced.anthropic(api_key=other_key(priced)).messages.batches.retrieve(batch.id)


# Moderations.

RULES = """
[moderation]
[[moderation.rules]]
name = "self-harm.intent"
kind = "words"
words = ["zyxomma"]
action = "block"

[[moderation.rules]]
name = "house-rule"
kind = "regex"
pattern = "secret-[0-9]+"
action = "flag"
"""


def test_texts_are_judged_by_the_rules_that_calls_are_held_to(binary, tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("rules"), configuration=PRICED + RULES)
    try:
        client = server.openai()
        texts = ["hello", "a ZYXOMMA here", {"type": "text", "text": "secret-42"}]
        told = client.moderations.create(input=texts, model="omni-moderation-latest")
        assert told.id.startswith("modr-") and told.model == "headrace-rules"
        clean, blocked, flagged = told.results
        assert "note" not in told.model_extra
        assert not clean.flagged and not any(clean.categories.model_dump().values())
        assert blocked.flagged and blocked.categories.self_harm_intent and blocked.category_scores.self_harm_intent == 1
        assert not blocked.categories.hate and blocked.model_extra["blocked"] is True
        assert flagged.flagged and not any(flagged.categories.model_dump().values())
        assert (flagged.model_extra["rule"], flagged.model_extra["blocked"]) == ("house-rule", False)
        granted = server.run("credit", "grant", "100", "--reference", "tests")
        assert granted.returncode == 0, granted.stderr
        for text, result in zip(["a ZYXOMMA here", "secret-42"], [blocked, flagged]):
            ask = lambda: client.chat.completions.create(**request("x", messages=[{"role": "user", "content": text}])["body"])
            refused(ask, 400, "content_policy") if result.model_extra["blocked"] else ask()
        image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
        assert refused(lambda: client.moderations.create(input=image), 400, "unsupported_value").param == "input[0].type"
        refused(lambda: client.moderations.create(input="a", model="other"), 404, "model_not_found")
    finally:
        server.stop()


def test_without_rules_nothing_is_flagged(client):
    told = client.moderations.create(input="anything")
    (result,) = told.results
    assert result.flagged is False
    assert "no content rules" in told.model_extra["note"], "nothing was judged, and the answer says so"
