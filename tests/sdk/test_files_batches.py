"""Files, uploads, batches and moderations, as the official SDKs have them."""

import hashlib
import http.client
import json
import os
import urllib.parse

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
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
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
