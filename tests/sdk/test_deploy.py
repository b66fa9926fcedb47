"""What `deploy/` holds, against other people's readers: Prometheus' query language, Kubernetes' schemas, systemd, and what a running
server really tells under `/metrics`."""

import json
import re
import shutil
import socket
import subprocess
import urllib.request

import kubernetes_validate
import promql_parser as promql
import pytest
import yaml

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
    more += ["--model", "far=dead/far", "--set", f'routes=[{{ name = "trial", to = [{arms}] }}]']
    server = Server(tmp_path_factory.mktemp("deploy"), more=more)
    try:
        client = server.openai()
        turns = [{"role": "user", "content": "What is prefill?"}]
        client.chat.completions.create(model=MODEL, messages=turns, max_tokens=32)
        for model in ("far", "not-here"):
            with pytest.raises(Exception):
                client.chat.completions.create(model=model, messages=turns)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as answer:
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


def test_a_name_that_is_not_told_is_found(told):
    assert wrong("sum(rate(headrace_nothing_total[5m]))", told)[0] == ["headrace_nothing_total"]
    assert wrong('headrace_build_info{color="red"}', told)[0] == ["headrace_build_info: color"]
    assert wrong("sum by (color) (headrace_build_info)", told)[0] == ["by color"]


def manifests():
    return [it for it in yaml.safe_load_all((DEPLOY / "kubernetes" / "headrace.yaml").read_text()) if it]


@pytest.mark.parametrize("manifest", list(manifests()), ids=lambda manifest: manifest["kind"])
def test_manifests_are_what_kubernetes_takes(manifest):
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


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
