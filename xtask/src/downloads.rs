//! Tries the files of a release page as a user would. Checks the checksums and the signature, unpacks the archive and
//! the Debian package, and runs the README's first session from each. Knows the files, not how they are made.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use toml::Table;

use crate::debian;
use crate::dist::{self, CHECKSUMS, NAMESPACE, Options, Release};
use crate::files::{copy, create, empty, write};
use crate::sbom::{built, package_url};
use crate::server::{Server, free_address};
use crate::shell::{Done, Failure, Place, capture, read};

/// The name of the signer in the list of allowed signers.
const SIGNER: &str = "headrace";
/// The README's lines that start the server and send it a request.
const START: &str = "cargo run --release -- up";
const ASK: &str = "curl http://127.0.0.1:8080/v1/chat/completions";

/// Runs the step: packages the release program for this machine, signed with a temporary key, and tries every file.
pub(crate) fn run(place: &Place) -> Result<Done, Failure> {
    let found = |place: &Place, program: &str, argument: &str| {
        capture(place.command(program).arg(argument), program).is_ok()
    };
    if !found(place, "ssh", "-V") {
        debian::install(place, &["openssh-client"]);
    }
    let key = if found(place, "ssh", "-V") { Some(key(place)?) } else { None };
    let options =
        Options { program: Some(place.headrace()), key: key.clone(), quick: true, ..Options::default() };
    let release = dist::make(place, &options)?;
    verified(place, &release.folder, key.as_deref())?;
    parts(place, &release)?;
    try_out(place, &release)?;
    let mut missing = Vec::new();
    if key.is_none() {
        missing.push("the signature (no ssh-keygen; Debian: apt-get install openssh-client)");
    }
    if release.package.is_none() {
        missing.push("the Debian package (no dpkg-deb)");
    }
    Ok(if missing.is_empty() { Done::Passed } else { Done::Without(missing.join(" and ")) })
}

/// Unpacks the archive, the image context and the package. Runs the README's first session from the archive and from
/// the package.
pub(crate) fn try_out(place: &Place, release: &Release) -> Result<(), Failure> {
    let work = place.target.join("downloads-tried");
    empty(&work)?;
    unpack(place, &release.archive(), &work)?;
    let archive = work.join(&release.name);
    for part in [
        "LICENSE",
        "README.md",
        "completions/headrace.bash",
        "man/man1/headrace.1",
        "deploy/systemd/headrace.service",
    ] {
        there(&archive.join(part))?;
    }
    session(place, &archive.join("headrace"), &archive.join("README.md"), &work.join("from-archive"))?;
    unpack(place, &release.image(), &work.join("image"))?;
    there(&work.join("image/Dockerfile"))?;
    there(&work.join("image/data"))?;
    if let Some(package) = &release.package {
        let root = work.join("root");
        let line = format!("dpkg -x {}", package.display());
        capture(place.command("dpkg").arg("-x").arg(package).arg(&root), &line)?;
        for part in [
            "etc/headrace/headrace.toml",
            "usr/lib/systemd/system/headrace.service",
            "usr/share/man/man1/headrace.1.gz",
        ] {
            there(&root.join(part))?;
        }
        let readme = root.join("usr/share/doc/headrace/README.md");
        session(place, &root.join("usr/bin/headrace"), &readme, &work.join("from-package"))?;
    }
    Ok(())
}

fn unpack(place: &Place, archive: &Path, into: &Path) -> Result<(), Failure> {
    create(into)?;
    let line = format!("tar -xzf {}", archive.display());
    capture(place.command("tar").arg("-xzf").arg(archive).arg("-C").arg(into), &line).map(|_| ())
}

fn there(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    Err(wrong(format!("{} is missing", path.display())))
}

/// Runs `--version` and then the README's first session: `up`, the curl request, `trace --last`. Each command runs in
/// `work`.
fn session(place: &Place, program: &Path, readme: &Path, work: &Path) -> Result<(), Failure> {
    empty(work)?;
    let text = read(readme)?;
    let [start, ask] = [START, ASK].map(|line| block(&text, line));
    let (start, ask) = (start?, ask?);
    let headrace = |arguments: &[&str]| {
        let line = format!("{} {}", program.display(), arguments.join(" "));
        capture(place.command(program).args(arguments).current_dir(work), &line)
    };
    let version = headrace(&["--version"])?;
    let address = free_address()?;
    let mut up = place.command(program);
    up.args(["up", "--listen", &address]).envs(exports(start)).current_dir(work);
    let mut server = Server::start(up, address.clone(), &work.join("server.log"))?;
    server.wait_until_ready()?;
    let mut shell = place.command("bash");
    shell.args([
        "-euc",
        &ask.replace("curl ", "curl --silent --show-error --fail-with-body ")
            .replace("127.0.0.1:8080", &address),
    ]);
    let answer = capture(shell.current_dir(work), ask)?;
    let parsed: Value = serde_json::from_str(&answer)
        .map_err(|error| wrong(format!("the answer is no JSON ({error}): {answer}")))?;
    let words = parsed.pointer("/choices/0/message/content").and_then(Value::as_str).unwrap_or_default();
    if words.trim().is_empty() {
        return Err(wrong(format!("the answer has no text: {answer}")));
    }
    let trace = headrace(&["trace", "--last"])?;
    for part in ["completed", "chat.completions", "headrace-demo", "money"] {
        if !trace.contains(part) {
            return Err(wrong(format!("`headrace trace --last` shows no `{part}`:\n{trace}")));
        }
    }
    server.stop()?;
    let version = version.lines().next().unwrap_or_default();
    println!("{version} from {}: started, answered, traced and stopped", program.display());
    Ok(())
}

/// The code block of the README that contains a line.
fn block<'a>(readme: &'a str, line: &str) -> Result<&'a str, Failure> {
    let blocks =
        readme.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```")).map(|(block, _)| block);
    let mut found = blocks.filter(|block| {
        block.lines().any(|candidate| candidate.starts_with(line)) && block.contains("export ")
    });
    found.next().ok_or_else(|| wrong(format!("the README has no block with `{line}`")))
}

/// The variables that a block exports.
fn exports(block: &str) -> Vec<(String, String)> {
    let pairs = block.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Makes a key for this run only.
fn key(place: &Place) -> Result<PathBuf, Failure> {
    let folder = place.target.join("downloads-key");
    empty(&folder)?;
    let key = folder.join("key");
    let mut command = place.command("ssh-keygen");
    command.args(["-q", "-t", "ed25519", "-N", "", "-C", SIGNER, "-f"]).arg(&key);
    capture(&mut command, "ssh-keygen -t ed25519")?;
    Ok(key)
}

/// Verifies checksums and signature as docs/deploy.md says. A changed list of checksums must fail.
fn verified(place: &Place, folder: &Path, key: Option<&Path>) -> Result<(), Failure> {
    let line = format!("sha256sum --check --strict {CHECKSUMS}");
    capture(
        place.command("sha256sum").args(["--check", "--strict", "--quiet", CHECKSUMS]).current_dir(folder),
        &line,
    )?;
    let Some(key) = key else { return Ok(()) };
    let public = read(&key.with_extension("pub"))?;
    let signers = key.with_file_name("allowed_signers");
    write(&signers, &format!("{SIGNER} {public}"))?;
    let changed = key.with_file_name(CHECKSUMS);
    copy(&folder.join(CHECKSUMS), &changed)?;
    write(&changed, &(read(&changed)? + "0  added\n"))?;
    let holds = |sums: &Path| {
        let line = format!(
            "ssh-keygen -Y verify -f allowed_signers -I {SIGNER} -n {NAMESPACE} -s {CHECKSUMS}.sig < {CHECKSUMS}"
        );
        let input =
            std::fs::File::open(sums).map_err(|error| wrong(format!("{}: {error}", sums.display())))?;
        let mut command = place.command("ssh-keygen");
        command.args(["-Y", "verify", "-f"]).arg(&signers).args(["-I", SIGNER, "-n", NAMESPACE, "-s"]);
        command.arg(folder.join(format!("{CHECKSUMS}.sig"))).stdin(input);
        capture(&mut command, &line)
    };
    println!("{}", holds(&folder.join(CHECKSUMS))?.trim_end());
    if holds(&changed).is_ok() {
        return Err(wrong("the signature also holds for a changed list of checksums".to_owned()));
    }
    Ok(())
}

/// Compares the list of parts with `Cargo.lock`, and its required parts with `cargo tree`.
fn parts(place: &Place, release: &Release) -> Result<(), Failure> {
    let document: Value = serde_json::from_str(&read(&release.sbom())?)
        .map_err(|error| wrong(format!("{} is no JSON: {error}", release.sbom().display())))?;
    let lock: Table = read(&place.root.join("Cargo.lock"))?
        .parse()
        .map_err(|error| wrong(format!("Cargo.lock: {error}")))?;
    let rows = lock.get("package").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let word = |row: &toml::Value, name: &str| {
        row.get(name).and_then(toml::Value::as_str).unwrap_or_default().to_owned()
    };
    let locked: BTreeSet<[String; 2]> = rows
        .iter()
        .map(|row| [package_url(&word(row, "name"), &word(row, "version")), word(row, "checksum")])
        .collect();
    let text = |value: &Value, pointer: &str| {
        value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let components = document.pointer("/components").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut listed: BTreeSet<[String; 2]> =
        components.iter().map(|part| [text(part, "/purl"), text(part, "/hashes/0/content")]).collect();
    let main = text(&document, "/metadata/component/purl");
    listed.insert([main.clone(), String::new()]);
    same("Cargo.lock", &locked, &listed)?;
    let mut required: BTreeSet<String> = components
        .iter()
        .filter(|part| text(part, "/scope") == "required")
        .map(|part| text(part, "/purl"))
        .collect();
    required.insert(main);
    same("cargo tree", &built(place, &release.target)?, &required)?;
    println!("{} parts of {} crates in Cargo.lock are in the program", required.len(), locked.len());
    Ok(())
}

fn same<T: Ord + std::fmt::Debug>(
    source: &str,
    wanted: &BTreeSet<T>,
    found: &BTreeSet<T>,
) -> Result<(), Failure> {
    let missing: Vec<_> = wanted.difference(found).collect();
    let more: Vec<_> = found.difference(wanted).collect();
    if missing.is_empty() && more.is_empty() {
        return Ok(());
    }
    Err(wrong(format!("the list of parts differs from {source}: missing {missing:?}, only there {more:?}")))
}

fn wrong(what: String) -> Failure {
    Failure::new(
        what,
        "run it again with\n  cargo run --release -p xtask -- dist --program target/release/headrace --try",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_the_first_session() {
        let readme = include_str!("../../README.md");
        let exported = exports(block(readme, START).unwrap());
        assert!(exported.iter().any(|(name, _)| name == "HEADRACE_BOOTSTRAP_KEY"), "{exported:?}");
        let key = &exported[0].1;
        assert!(
            block(readme, ASK).unwrap().contains(key),
            "the question uses the key that the server starts with"
        );
        assert!(block(readme, "no such line").is_err());
    }

    #[test]
    fn a_missing_part_and_an_unknown_one_are_named() {
        let [wanted, found] = [["a", "b"], ["b", "c"]].map(BTreeSet::from);
        let error = same("Cargo.lock", &wanted, &found).unwrap_err().to_string();
        assert!(error.contains("missing [\"a\"], only there [\"c\"]"), "{error}");
        assert!(same("Cargo.lock", &wanted, &wanted).is_ok());
    }
}
