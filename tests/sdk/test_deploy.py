"""What `deploy/` holds, against other people's readers: Prometheus' query language, Kubernetes' schemas, systemd, and what a running
server really tells under `/metrics`."""

import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import urllib.request

import kubernetes_validate
import promql_parser as promql
import pytest
import yaml

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

from conftest import MODEL, ROOT, Server

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "headrace.json").read_text())
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def told(binary, tmp_path_factory):
    """The labels of each sample's name, from a server that has something of everything."""
    metrics = free_port()
    arms = f'{{ model = "{MODEL}", weight = 99 }}, {{ model = "far", weight = 1, canary = true }}'
    more = ["--metrics-listen", f"127.0.0.1:{metrics}", "--upstream", f"dead=openai:http://127.0.0.1:{free_port()}"]
    more += ["--set", f"telemetry.endpoint=http://127.0.0.1:{free_port()}"]
    more += ["--model", "far=dead/far", "--set", f'routes=[{{ name = "trial", to = [{arms}] }}]']
    server = Server(tmp_path_factory.mktemp("deploy"), more=more)
    try:
        client = server.openai()
        turns = [{"role": "user", "content": "What is prefill?"}]
        client.chat.completions.create(model=MODEL, messages=turns, max_tokens=32)
        for model in ("far", "not-here"):
            with pytest.raises(Exception):
                client.chat.completions.create(model=model, messages=turns)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    finally:
        server.stop()
    labels = {}
    for name, inside in re.findall(r"^([a-z_0-9]+)(?:\{(.*)\})? \S+$", text, re.M):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', inside))
    return labels


def plain(expression):
    """As Prometheus gets it: Grafana's own variables are filled in."""
    return expression.replace("$__rate_interval", "1m")


def under(node):
    """A node of an expression and all below it."""
    yield node
    inner = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector", "param")]
    for below in [*inner, *getattr(node, "args", [])]:
        if below is not None and not isinstance(below, str):
            yield from under(below)


def wrong(expression, told):
    """Names and labels in it that no server tells."""
    tree = promql.parse(plain(expression))
    found, labels = [], set(SCRAPED)
    for node in under(tree):
        if isinstance(node, promql.VectorSelector):
            if node.name == "up":
                continue
            if node.name not in told:
                found.append(node.name)
            has = told.get(node.name, set()) | SCRAPED
            labels |= has
            found += [f"{node.name}: {of.name}" for of in node.matchers.matchers if of.name not in has]
    for node in under(tree):
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            found += [f"by {name}" for name in node.modifier.labels if name not in labels]
    return found, labels


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_the_dashboard_asks_for_what_is_told(panel, told):
    assert panel["description"] and panel["targets"]
    for target in panel["targets"]:
        found, labels = wrong(target["expr"], told)
        assert found == [], target["expr"]
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_the_dashboard_is_laid_out():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_watch_what_is_told(rule, told):
    found, labels = wrong(rule["expr"], told)
    assert found == [], rule["expr"]
    assert rule["labels"]["severity"] in ("page", "ticket")
    said = " ".join(rule["annotations"].values())
    assert rule["annotations"]["look"] and set(re.findall(r"\$labels\.(\w+)", said)) <= labels


def test_points_of_times_lead_to_traces():
    """Where Grafana draws buckets over time, it shows their examples, which name a trace."""
    drawn = [target for panel in PANELS if panel["type"] == "timeseries" for target in panel["targets"] if "_bucket" in target["expr"]]
    assert len(drawn) > 10 and all(target["exemplar"] for target in drawn)


DURATION = re.compile(r"(\d+(ms|[smhdwy]))+")
"""<https://prometheus.io/docs/prometheus/latest/querying/basics/#float-literals-and-time-durations>"""


def test_rules_are_what_prometheus_reads():
    """Keys and durations of <https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/>: one that it does not know stops it."""
    file = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    assert set(file) == {"groups"}
    for group in file["groups"]:
        assert group["name"] and set(group) <= {"name", "interval", "limit", "query_offset", "labels", "rules"}
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}, rule
        assert re.fullmatch(r"[a-zA-Z_]\w*", rule["alert"])
        for key in {"for", "keep_firing_for"} & set(rule):
            assert DURATION.fullmatch(rule[key]), rule
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    scraping = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert scraping["rule_files"] == ["alerts.yml"] and {it["job_name"] for it in scraping["scrape_configs"]} == {"headrace"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no Prometheus on this machine")
def test_prometheus_own_tool_takes_the_rules():
    for command in (["rules", "alerts.yml"], ["config", "prometheus.yml"]):
        checked = subprocess.run(["promtool", "check", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_name_that_is_not_told_is_found(told):
    assert wrong("sum(rate(headrace_nothing_total[5m]))", told)[0] == ["headrace_nothing_total"]
    assert wrong('headrace_build_info{color="red"}', told)[0] == ["headrace_build_info: color"]
    assert wrong("sum by (color) (headrace_build_info)", told)[0] == ["by color"]


def manifests():
    return [it for it in yaml.safe_load_all((DEPLOY / "kubernetes" / "headrace.yaml").read_text()) if it]


@pytest.mark.parametrize("manifest", list(manifests()), ids=lambda manifest: manifest["kind"])
def test_manifests_are_what_kubernetes_takes(manifest):
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def test_the_manifests_fit_together():
    """What one names, the others have: no schema sees that."""
    by_kind = {manifest["kind"]: manifest for manifest in manifests()}
    server, service, config = by_kind["StatefulSet"]["spec"], by_kind["Service"], by_kind["ConfigMap"]
    pod, (container,) = server["template"]["spec"], server["template"]["spec"]["containers"]
    labels = server["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items() and server["selector"]["matchLabels"].items() <= labels.items()
    assert server["serviceName"] == service["metadata"]["name"] and server["replicas"] == 1
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    assert [(probe["path"], probe["port"]) for probe in probes] == [("/readyz", "metrics")] * 2 + [("/healthz", "metrics")]
    settings = tomllib.loads(config["data"]["headrace.toml"])
    listens = {name: int(settings["server"][name].rsplit(":", 1)[1]) for name in ("listen", "metrics_listen")}
    assert listens == {"listen": ports["api"], "metrics_listen": ports["metrics"]}
    annotations = server["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) == ports["metrics"]
    assert pod["terminationGracePeriodSeconds"] > seconds(settings["server"]["drain"])
    volumes = {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"] for claim in server["volumeClaimTemplates"]}
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounted) == volumes and mounted["data"] == settings["data_dir"]
    named = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    assert named == [config["metadata"]["name"]]
    assert container["args"][-1] == mounted["config"] + "/headrace.toml"
    # Nothing runs as root, or with rights.
    assert pod["securityContext"]["runAsNonRoot"] and not container["securityContext"]["allowPrivilegeEscalation"]
    user = re.search(r"^USER (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.M).group(1)
    assert pod["securityContext"]["runAsUser"] == int(user)


@pytest.mark.parametrize("name", ["Dockerfile", "release.Dockerfile"])
def test_a_linter_of_images_has_nothing_to_say(name):
    linter = pathlib.Path(sys.executable).with_name("hadolint")
    # DL3008: the versions of Debian's packages are Debian's to say.
    checked = subprocess.run([linter, "--no-color", "--ignore", "DL3008", DEPLOY / name], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_unit_gives_more_time_than_a_drain_takes(binary):
    unit = (DEPLOY / "systemd" / "headrace.service").read_text()
    reference = (ROOT / "docs" / "configuration.md").read_text()
    drain = re.search(r'^\| `server\.drain` \|[^|]*\| `"(\w+)"`', reference, re.M).group(1)
    assert int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1)) > seconds(drain)


def test_the_manifests_configuration_is_one(binary, tmp_path):
    (config,) = [it for it in manifests() if it["kind"] == "ConfigMap"]
    path = tmp_path / "headrace.toml"
    path.write_text(config["data"]["headrace.toml"].replace("/var/lib/headrace", str(tmp_path / "data")))
    command = [binary, "config", "check", "--config", path]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"})
    assert checked.returncode == 0, checked.stdout + checked.stderr


def commands():
    """Command lines of ours in the unit and in the image."""
    unit = (DEPLOY / "systemd" / "headrace.service").read_text()
    yield from re.findall(r"^Exec\w+=headrace (.*)$", unit, re.M)
    yield " ".join(json.loads(re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.M)[0]))
    (server,) = [it for it in manifests() if it["kind"] == "StatefulSet"]
    yield " ".join(server["spec"]["template"]["spec"]["containers"][0]["args"])


@pytest.mark.parametrize("command", list(commands()))
def test_command_lines_are_known(binary, command):
    """Every word of them stands in the help of the command."""
    words = command.split()
    flags = [word for word in words if word.startswith("--")]
    named = [word for word in words[: words.index(flags[0])] if not word.startswith("-")]
    helped = subprocess.run([binary, *named, "--help"], capture_output=True, text=True, timeout=60)
    assert helped.returncode == 0, helped.stderr
    assert [flag for flag in flags if flag not in helped.stdout] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_systemd_takes_the_unit(tmp_path):
    unit = tmp_path / "headrace.service"
    text = (DEPLOY / "systemd" / "headrace.service").read_text()
    unit.write_text(text.replace("=headrace ", "=/bin/true "))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert verified.returncode == 0 and "headrace.service" not in verified.stderr, verified.stderr
