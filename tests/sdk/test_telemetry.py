"""What goes out to others' tools: OTLP as OpenTelemetry's own decoder reads it, lines of the log, and the page of metrics as Prometheus'
own parser reads it. No word of a prompt or an answer is in any of them."""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request

import openai
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from conftest import MODEL, Server
from listening import Handler, Listening
from scripted import Scripted
from test_deploy import free_port

KINDS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}
CANARY = "XYZZYCANARY"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


class Receiver(Listening):
    """Takes what is sent by OTLP, and keeps it as it was and as it is read."""

    class Handler(Handler):
        def do_POST(self):
            body, outer = self.body(), self.server.outer
            assert self.headers["content-type"] == "application/x-protobuf"
            assert self.headers["x-tenant"] == "a b"
            outer.bodies.append(body)
            message = KINDS[self.path]()
            message.ParseFromString(body)
            # Nothing that the protocol does not know.
            assert message.SerializeToString(deterministic=True) and not unknown(message)
            outer.read[self.path].append(message)
            self.answer()

    def __init__(self):
        self.bodies, self.read = [], {path: [] for path in KINDS}
        super().__init__(Receiver.Handler)


def unknown(message):
    """Whether a message, or one within it, has fields that its type does not have: the bytes would be fewer without them."""
    whole = message.ByteSize()
    copy = type(message)()
    copy.CopyFrom(message)
    copy.DiscardUnknownFields()
    return copy.ByteSize() != whole


def plain(value: AnyValue):
    which = value.WhichOneof("value")
    inner = getattr(value, which)
    return [plain(item) for item in inner.values] if which == "array_value" else inner


def said(attributes):
    return {attribute.key: plain(attribute.value) for attribute in attributes}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A server that tells everything, calls of every kind, and what was told by its end."""
    receiver, scripted = Receiver(), Scripted()
    port = free_port()
    configuration = f"""
[server]
metrics_listen = "127.0.0.1:{port}"

[log]
filter = "info"
format = "json"

[telemetry]
linger = "10ms"
metrics_every = "200ms"

[[upstreams]]
name = "far"
kind = "openai"
url = "{scripted.url}"
price = {{ input = "1", output = "2" }}

[[upstreams]]
name = "near"
kind = "openai"
url = "{scripted.url}"
price = {{ input = "1", output = "2" }}

[[upstreams]]
name = "dead"
kind = "openai"
url = "http://127.0.0.1:{free_port()}"
price = {{ input = "1", output = "2" }}

[[models]]
name = "{MODEL}"
path = "builtin:demo"

[[models]]
name = "scripted"
targets = ["far/scripted"]

[[models]]
name = "gone"
targets = ["dead/any"]

[[models]]
name = "either"
targets = ["near/scripted", "far/scripted"]

[[prices]]
model = "{MODEL}"
input = "0.1"
output = "0.4"
"""
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b",
        "OTEL_SERVICE_NAME": "told",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    server = Server(tmp_path_factory.mktemp("told"), settings, configuration)
    ids = {}
    try:
        client = server.openai(default_headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        messages = [{"role": "system", "content": CANARY}, {"role": "user", "content": f"{CANARY}: What is a KV cache?"}]
        for model in (MODEL, "scripted", "either"):
            # Whoever is asked first for the last one has too much to do.
            scripted.refusing = 1 if model == "either" else 0
            raw = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=8)
            ids.setdefault(model, raw.headers["x-request-id"])
        for part in server.openai().chat.completions.create(model=MODEL, messages=messages, max_tokens=8, stream=True):
            pass
        refusals = [
            (server.openai(), {"model": MODEL, "n": 10_000}, openai.BadRequestError),
            (server.openai(), {"model": f"none-{CANARY.lower()}"}, openai.NotFoundError),
            (server.openai(api_key=f"sk-{CANARY}-0123456789"), {"model": MODEL}, openai.AuthenticationError),
            (server.openai(), {"model": "gone"}, openai.InternalServerError),
        ]
        for refused, changed, kind in refusals:
            with pytest.raises(kind):
                refused.chat.completions.create(**{"messages": messages, "max_tokens": 4, **changed})
        pages = {}
        for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"accept": accept})
            with urllib.request.urlopen(request, timeout=60) as answer:
                pages[accept] = (answer.headers["content-type"], answer.read().decode())
        # By time. One more is sent at the end.
        end = time.monotonic() + 60
        while not receiver.read["/v1/metrics"]:
            assert time.monotonic() < end, "no metrics are sent by time"
            time.sleep(0.01)
    finally:
        server.stop()
        receiver.stop()
        scripted.stop()
    parents = scripted.parents
    return {"receiver": receiver, "ids": ids, "log": server.said(), "pages": list(pages.values()), "parents": parents}


def spans_of(told):
    for message in told["receiver"].read["/v1/traces"]:
        for of in message.resource_spans:
            yield from ((said(of.resource.attributes), span) for scope in of.scope_spans for span in scope.spans)


def test_a_call_is_a_span_below_its_callers_with_a_span_for_each_stage_and_try(told):
    spans = list(spans_of(told))
    assert all(resource["service.name"] == "told" and resource["deployment.environment.name"] == "test" for resource, _ in spans)
    roots = {said(span.attributes)["headrace.request.id"]: span for _, span in spans if span.kind == Span.SPAN_KIND_SERVER}
    root = roots[told["ids"][MODEL]]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    attributes = said(root.attributes)
    assert root.name == f"chat {MODEL}"
    assert attributes["gen_ai.operation.name"] == "chat" and attributes["gen_ai.provider.name"] == "headrace"
    assert attributes["gen_ai.request.model"] == MODEL and attributes["gen_ai.usage.output_tokens"] <= 8
    assert attributes["gen_ai.response.finish_reasons"] in (["stop"], ["length"]) and attributes["headrace.cost_nano_dollars"] > 0
    below = [span for _, span in spans if span.parent_span_id == root.span_id]
    stages = [span for span in below if span.kind == Span.SPAN_KIND_INTERNAL]
    assert {"authenticate", "render", "hold", "prefill", "decode", "settle"} <= {span.name for span in stages}
    took = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in stages)
    assert took == root.end_time_unix_nano - root.start_time_unix_nano
    assert len({span.span_id for _, span in spans}) == len(spans)
    # What a server behind us answered is its own.
    behind = roots[told["ids"]["scripted"]]
    assert said(behind.attributes)["gen_ai.provider.name"] == "far"
    # Without a `traceparent` a trace has the bits of its request.
    own = [span for identity, span in roots.items() if identity.removeprefix("req_") == span.trace_id.hex()]
    assert own and all(not span.parent_span_id for span in own)


def test_a_try_that_followed_another_is_linked_with_it(told):
    tries = {span.span_id: span for _, span in spans_of(told) if span.kind == Span.SPAN_KIND_CLIENT}
    linked = [span for span in tries.values() if span.links]
    assert linked
    for span in linked:
        earlier = tries[span.links[0].span_id]
        assert earlier.status.code == Status.STATUS_CODE_ERROR and said(earlier.attributes)["error.type"]
        assert earlier.parent_span_id == span.parent_span_id and earlier.trace_id == span.trace_id


def test_an_upstream_works_below_the_try_that_asked_it(told):
    tries = {span.span_id.hex(): span for _, span in spans_of(told) if span.kind == Span.SPAN_KIND_CLIENT}
    # One was turned away, and asked again elsewhere.
    assert len(told["parents"]) == len(set(told["parents"])) == 3
    outcomes = []
    for parent in told["parents"]:
        version, trace, span, flags = parent.split("-")
        assert (version, trace, flags) == ("00", TRACE, "01")
        asked = tries[span]
        assert asked.trace_id.hex() == TRACE
        outcomes.append(said(asked.attributes)["headrace.attempt.outcome"])
    assert outcomes == ["answered", "failed", "answered"]


def test_metrics_are_those_of_the_page_and_of_the_conventions(told):
    messages = told["receiver"].read["/v1/metrics"]
    # By time, and once more at the end.
    assert len(messages) >= 2
    metrics = {metric.name: metric for of in messages[-1].resource_metrics for scope in of.scope_metrics for metric in scope.metrics}
    first = metrics["gen_ai.server.time_to_first_token"].histogram.data_points
    # The demo model answered once more, as a stream.
    answered = {(said(point.attributes)["gen_ai.request.model"]): point.count for point in first}
    assert answered == {MODEL: 2, "scripted": 1, "either": 1}
    assert all(len(point.bucket_counts) == len(point.explicit_bounds) + 1 for point in first)
    tokens = metrics["gen_ai.client.token.usage"].histogram.data_points
    assert {said(point.attributes)["gen_ai.token.type"] for point in tokens} == {"input", "output"}
    failed = [said(point.attributes) for point in metrics["gen_ai.server.request.duration"].histogram.data_points]
    assert any(attributes.get("error.type") for attributes in failed)
    assert TRACE in {example.trace_id.hex() for point in first for example in point.exemplars}
    requests = metrics["headrace.requests"].sum
    assert requests.is_monotonic and sum(point.as_double for point in requests.data_points) == 8
    assert metrics["headrace.request_duration"].unit == "s"
    assert metrics["headrace.telemetry_dropped"].sum.data_points and not any(
        point.as_double for point in metrics["headrace.telemetry_dropped"].sum.data_points
    )


def test_each_call_and_each_refusal_is_a_line(told):
    lines = [line for message in told["receiver"].read["/v1/logs"] for of in message.resource_logs for scope in of.scope_logs for line in scope.log_records]
    by_outcome = {}
    for line in lines:
        by_outcome.setdefault(said(line.attributes)["headrace.outcome"], []).append(line)
    assert len(by_outcome["completed"]) == 4 and len(by_outcome["refused"]) >= 3
    codes = {said(line.attributes)["error.type"] for line in by_outcome["refused"]}
    assert {"model_not_found", "invalid_api_key"} <= codes
    spans = {span.span_id: span.trace_id for _, span in spans_of(told)}
    assert all(spans[line.span_id] == line.trace_id for line in lines)
    # The same on standard error, as objects.
    local = [json.loads(line) for line in told["log"].splitlines() if line.startswith("{")]
    calls = [line for line in local if line["target"] == "headrace_calls"]
    assert len(calls) == len(lines)
    assert {line["request_id"] for line in calls} == {said(line.attributes)["headrace.request.id"] for line in lines}
    completed = next(line for line in calls if line["request_id"] == told["ids"][MODEL])
    assert completed["status"] == 200 and completed["trace_id"] == TRACE and completed["output_tokens"] <= 8
    assert completed["cost_nano_dollars"] > 0 and completed["org"] == "default" and completed["key"]
    missing = next(line for line in calls if line.get("code") == "model_not_found")
    assert missing["status"] == 404 and missing["stage"] == "route"


def test_no_word_of_a_call_leaves_and_no_colour_stands_in_a_file(told):
    assert "\x1b" not in told["log"]
    # The name of a model that was asked for is the caller's own, and is told as such; nothing else of what it said is.
    words = (CANARY, f"sk-{CANARY}")
    for body in told["receiver"].bodies:
        assert not any(word.encode() in body for word in words)
    assert not any(word in told["log"] for word in words)
    assert not any(word in page for _, page in told["pages"] for word in words)


def test_the_page_is_in_the_format_that_is_asked_for_and_has_examples(told):
    (text_kind, text), (open_kind, page) = told["pages"]
    assert text_kind.startswith("text/plain; version=0.0.4") and "# EOF" not in text and " # {" not in text
    assert open_kind.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert {"headrace_requests", "headrace_edge_requests", "headrace_engine_up"} <= set(families)
    examples = [sample.exemplar for sample in families["headrace_request_duration_seconds"].samples if sample.exemplar]
    assert TRACE in {example.labels["trace_id"] for example in examples}
    assert all(re.fullmatch("req_[0-9a-f]{32}", example.labels["request_id"]) for example in examples)
    # What one format says, the other says: but for examples, and the ends of names.
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert {name.removesuffix("_total") for name in names} == set(families)


def test_a_receiver_that_is_not_there_holds_nobody_up(tmp_path):
    port = free_port()
    configuration = f"""
[server]
metrics_listen = "127.0.0.1:{port}"

[telemetry]
endpoint = "http://127.0.0.1:{free_port()}"
linger = "1ms"
queue_records = 2
batch_records = 1
retry_for = "10m"

[[prices]]
model = "{MODEL}"
input = "0.1"
output = "0.4"
"""
    server = Server(tmp_path, configuration=configuration)
    try:
        end = time.monotonic() + 60
        while True:
            for _ in range(8):
                server.openai().chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                page = answer.read().decode()
            dropped = dict(re.findall(r'headrace_telemetry_dropped_total\{signal="(\w+)",reason="queue_full"\} (\d+)', page))
            if dropped["traces"] != "0" and dropped["logs"] != "0":
                break
            assert time.monotonic() < end, page
    finally:
        # It fails if the server still tries when its time to stop is over.
        server.stop()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no Prometheus on this machine")
def test_prometheus_itself_reads_the_page_and_its_examples(tmp_path):
    port, own = free_port(), free_port()
    server = Server(tmp_path, more=["--metrics-listen", f"127.0.0.1:{port}"])
    scraping = {"scrape_configs": [{"job_name": "headrace", "scrape_interval": "1s", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}
    (tmp_path / "prometheus.yml").write_text(json.dumps(scraping))
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb"]
    command += [f"--web.listen-address=127.0.0.1:{own}", "--enable-feature=exemplar-storage"]
    said_by_it = open(tmp_path / "prometheus.log", "wb")
    prometheus = subprocess.Popen(command, stdout=said_by_it, stderr=subprocess.STDOUT)

    def asked(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{own}/api/v1/{path}", timeout=5) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    try:
        client = server.openai(default_headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=4)
        name, end, found = "headrace_request_duration_seconds_bucket", time.monotonic() + 60, None
        while not found and time.monotonic() < end:
            found = asked(f"query_exemplars?query={name}&start=0&end={time.time() + 60:.0f}")
            time.sleep(0.2)
        (series,) = found
        assert [example["labels"]["trace_id"] for example in series["exemplars"]] == [TRACE]
        targets = asked("targets")["activeTargets"]
        assert [target["health"] for target in targets] == ["up"], targets
    finally:
        prometheus.terminate()
        prometheus.wait()
        said_by_it.close()
        server.stop()
