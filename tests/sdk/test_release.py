"""What makes a release, against other people's readers: GitHub's schema of workflows, and the names of what it builds; what shells and manuals
are told, against the shell itself."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

try:
    import tomllib
except ImportError:
    import tomli as tomllib

from conftest import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
"""`on` is read as the boolean that YAML 1.1 makes of it."""
MANIFEST = tomllib.loads((ROOT / "crates" / "headrace" / "Cargo.toml").read_text())
DEB = MANIFEST["package"]["metadata"]["deb"]
DIST = (ROOT / "xtask" / "src" / "dist.rs").read_text()
"""What the workflow calls to make the files."""


def steps():
    for job in RELEASE["jobs"].values():
        yield from job["steps"]


def scripts():
    return "\n".join(step["run"] for step in steps() if "run" in step)


def by_schema(workflow):
    """GitHub's own schema, as this tool carries it."""
    tool = pathlib.Path(sys.executable).parent / "check-jsonschema"
    command = [tool, "--builtin-schema", "vendor.github-workflows", workflow]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_what_github_takes(workflow):
    checked = by_schema(workflow)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_workflow_that_is_none_is_found(tmp_path):
    broken = tmp_path / "release.yml"
    broken.write_text((ROOT / ".github" / "workflows" / "release.yml").read_text().replace("runs-on:", "runs-of:"))
    assert by_schema(broken).returncode != 0


@pytest.mark.parametrize("step", [step for step in steps() if "run" in step], ids=lambda step: step.get("name", step["run"])[:40])
def test_the_scripts_are_shell(step):
    """Expressions of the workflow stand where words would."""
    text = re.sub(r"\$\{\{.*?\}\}", "word", step["run"])
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr


def test_what_the_workflow_names_is_there():
    text = scripts()
    profiles = tomllib.loads((ROOT / "Cargo.toml").read_text())["profile"]
    assert profiles["dist"] == {"inherits": "release", "strip": "symbols", "lto": "thin"}
    assert '"--profile", "dist", "--locked"' in DIST, "a release is compiled as the profile says"
    for package in re.findall(r"cargo .*-p (\S+)", text):
        assert (ROOT / "crates" / package / "Cargo.toml").exists() or (ROOT / package / "Cargo.toml").exists(), package
    uses = [step["with"]["file"] for step in steps() if "file" in step.get("with", {})]
    assert uses == ["deploy/release.Dockerfile"] and all((ROOT / name).exists() for name in uses)
    needed = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    assert set(re.findall(r"rustup (?:toolchain install|default) (\S+)", text)) == {needed}


def test_the_workflow_makes_its_files_with_the_command_that_the_tests_try():
    calls = re.findall(r"xtask -- dist(.*)", scripts())
    flags = [re.findall(r"(--\w+)", call) for call in calls]
    assert flags == [["--target", "--try"], ["--checksums", "--sign"]], "the files are tried, and only checksums of all files are signed"
    assert all(f'"{flag}"' in DIST for call in flags for flag in call)
    uploaded = [step["with"]["path"] for step in steps() if "upload-artifact" in step.get("uses", "")]
    assert uploaded == ["target/downloads/${{ matrix.target }}/headrace*"] and 'target.join("downloads")' in DIST


def test_the_release_is_for_both_machines():
    built = RELEASE["jobs"]["build"]["strategy"]["matrix"]["include"]
    assert [row["target"] for row in built] == ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"]
    image = next(step for step in RELEASE["jobs"]["image"]["steps"] if "build-push-action" in step.get("uses", ""))
    assert image["with"]["platforms"] == ",".join(f"linux/{row['debian']}" for row in built)
    needs = {name: job.get("needs", []) for name, job in RELEASE["jobs"].items()}
    assert needs == {"check": [], "build": "check", "image": "build", "publish": ["build", "image"]}


def test_the_debian_package_takes_what_is_there():
    made = {"target/release/headrace", "../../target/package/"}
    for source, target, mode in DEB["assets"]:
        assert not target.startswith("/") and mode in ("644", "755")
        if not any(source.startswith(start) for start in made):
            assert (ROOT / "crates" / "headrace" / source).exists(), source
    sources = " ".join(source for source, *_ in DEB["assets"])
    for shell in json.loads(re.search(r"const SHELLS: \[&str; 3\] = (.*);", DIST).group(1)):
        assert f"completions/headrace.{shell}" in sources
    assert (ROOT / "crates" / "headrace" / DEB["license-file"][0]).exists()
    assert DEB["conf-files"] == ["/etc/headrace/headrace.toml"]


def test_what_the_package_takes_beside_the_program_is_made(binary, tmp_path):
    """By the script that its manifest, the workflow and the docs name."""
    script = ROOT / "deploy" / "debian" / "prepare.sh"
    done = subprocess.run([script, binary], cwd=tmp_path, env={**os.environ, "SOURCE_DATE_EPOCH": "86400"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "", done.stdout + done.stderr
    for source in [source for source, *_ in DEB["assets"] if "target/package" in source] + [DEB["changelog"]]:
        assert list(tmp_path.glob(source.removeprefix("../../"))), source
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    changelog = (tmp_path / "target" / "package" / "changelog").read_text()
    assert changelog.startswith(f"headrace ({version}-1) unstable;") and changelog.endswith("Fri, 02 Jan 1970 00:00:00 +0000\n"), changelog
    assert "deploy/debian/prepare.sh" in (ROOT / "xtask" / "src" / "deb.rs").read_text()


@pytest.fixture
def systemd(tmp_path):
    """Runs a script of the package with commands that only write down how they were called. Returns the calls."""
    log, commands = tmp_path / "calls", tmp_path / "commands"
    commands.mkdir()
    for name in ["deb-systemd-helper", "deb-systemd-invoke", "systemctl"]:
        (commands / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n')
        (commands / name).chmod(0o755)

    def run(script, *arguments):
        log.write_text("")
        text = (ROOT / "deploy" / "debian" / script).read_text().replace("/run/systemd/system", str(tmp_path))
        ran = subprocess.run(["sh", "-s", *arguments], input=text, env={"PATH": f"{commands}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return log.read_text()

    return run


def test_the_package_has_the_unit_and_scripts_for_it(systemd):
    """An installation neither enables nor starts the service, an upgrade restarts a running one, a removal stops it."""
    assert ["../../deploy/systemd/headrace.service", "usr/lib/systemd/system/", "644"] in DEB["assets"]
    folder = ROOT / "crates" / "headrace" / DEB["maintainer-scripts"]
    assert all(os.access(folder / script, os.X_OK) for script in ["postinst", "prerm", "postrm"])
    installed, upgraded = systemd("postinst", "configure", ""), systemd("postinst", "configure", "0.1.0-1")
    assert "restart" not in installed and "start" not in installed and "daemon-reload" in installed, installed
    assert "deb-systemd-invoke try-restart headrace.service" in upgraded, upgraded
    assert systemd("prerm", "upgrade") == "", "the service runs until the new program is there"
    assert systemd("prerm", "remove") == "deb-systemd-invoke stop headrace.service\n"
    assert systemd("postrm", "remove") == "systemctl --system daemon-reload\n"
    assert systemd("postrm", "purge") == "deb-systemd-helper purge headrace.service\n"


def test_the_image_from_source_is_built_as_a_release_is():
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    assert "cargo build --profile dist " in text and "/target/dist/headrace " in text


def test_the_packaged_configuration_is_one(binary, tmp_path):
    text = (ROOT / "deploy" / "debian" / "headrace.toml").read_text()
    path = tmp_path / "headrace.toml"
    path.write_text(text.replace("/var/lib/headrace", str(tmp_path / "data")))
    command = [binary, "config", "check", "--config", path]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"})
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_image_runs_what_is_known(binary):
    text = (ROOT / "deploy" / "release.Dockerfile").read_text()
    command = json.loads(re.findall(r"^CMD (\[.*\])$", text, re.M)[0])
    helped = subprocess.run([binary, command[0], "--help"], capture_output=True, text=True, timeout=60)
    assert [flag for flag in command if flag.startswith("--") and flag not in helped.stdout] == []
    assert "USER 0" not in text and ":nonroot" in text


@pytest.mark.parametrize("name", ["Dockerfile", "release.Dockerfile"])
def test_the_console_of_an_image_can_be_reached(name):
    """The link that the log prints leads to a port that the image has, and not to the container's own loopback."""
    text = (ROOT / "deploy" / name).read_text()
    command = json.loads(re.findall(r"^CMD (\[.*\])$", text, re.M)[0])
    host, port = command[command.index("--admin-listen") + 1].rsplit(":", 1)
    assert host == "0.0.0.0" and port in re.search(r"^EXPOSE (.*)$", text, re.M).group(1).split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
@pytest.mark.parametrize(
    "line, expected",
    [
        ("headrace ch", ["chat"]),
        ("headrace keys ", ["create", "list", "revoke"]),
        ("headrace chat --no", ["--no-history"]),
        ("headrace trace --sl", ["--slowest"]),
        ("headrace completions z", ["zsh"]),
    ],
)
def test_bash_completes(binary, line, expected):
    script = """
source <("$0" completions bash)
read -ra COMP_WORDS <<< "$1"
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_headrace headrace "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
    ran = subprocess.run(["bash", "-c", script, binary, line], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    offered = ran.stdout.split()
    assert [word for word in expected if word not in offered] == [], offered


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff on this machine")
def test_manual_pages_are_typeset_without_a_warning(binary, tmp_path):
    written = subprocess.run([binary, "man", tmp_path / "man1"], capture_output=True, text=True, timeout=60)
    pages = sorted((tmp_path / "man1").glob("*.1"))
    assert written.returncode == 0 and f"{len(pages)} pages" in written.stdout, written.stdout + written.stderr
    for page in pages:
        set_ = subprocess.run(["groff", "-Kutf8", "-man", "-ww", "-Tutf8", page], capture_output=True, text=True, timeout=60)
        assert set_.returncode == 0 and set_.stderr == "", f"{page.name}: {set_.stderr}"
        assert "SYNOPSIS" in re.sub(".\x08", "", set_.stdout), page.name
