//! Builds the Debian package with `dpkg-deb`, from the table `package.metadata.deb` of the program's manifest.
//! `cargo deb` reads the same table.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::files::{copy, create, empty, write};
use crate::shell::{Failure, Place, capture, read, show};

/// The folder of the manifest, which the paths in the table start from.
const FOLDER: &str = "crates/headrace";
/// The path in the table that refers to the program.
const PROGRAM: &str = "target/release/headrace";
/// Scripts that dpkg runs when it installs and removes the package.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Makes the package in `folder`. `None` if this machine has no `dpkg-deb`.
pub(crate) fn make(
    place: &Place,
    folder: &Path,
    program: &Path,
    machine: &str,
    made: &str,
    quick: bool,
) -> Result<Option<PathBuf>, Failure> {
    if capture(place.command("dpkg-deb").arg("--version"), "dpkg-deb --version").is_err() {
        return Ok(None);
    }
    let mut prepare = place.command(place.root.join("deploy/debian/prepare.sh"));
    prepare.arg(program).env("SOURCE_DATE_EPOCH", made);
    show(&mut prepare, &format!("deploy/debian/prepare.sh {}", program.display()))?;
    let table = table(&read(&place.root.join(FOLDER).join("Cargo.toml"))?)?;
    let stage = folder.join("stage");
    empty(&stage)?;
    files(place, &table, program, &stage)?;
    let changelog = read(&place.root.join("target/package/changelog"))?;
    let version = version(&changelog)?;
    let depends = depends(place, &table, program, folder)?;
    control(place, &table, &stage, &version, machine, &depends)?;
    show(place.command("chmod").args(["-R", "go-w"]).arg(&stage), "chmod -R go-w stage")?;
    let package = folder.join(format!("headrace_{version}_{machine}.deb"));
    let compression: &[&str] = if quick { &["-Zgzip", "-z1"] } else { &["-Zxz"] };
    let mut command = place.command("dpkg-deb");
    command.env("SOURCE_DATE_EPOCH", made).args(["--root-owner-group"]).args(compression);
    command.arg("--build").arg(&stage).arg(&package);
    show(&mut command, &format!("dpkg-deb --build {}", package.display()))?;
    empty(&stage)?;
    std::fs::remove_dir(&stage).map_err(|error| wrong(format!("{}: {error}", stage.display())))?;
    Ok(Some(package))
}

fn table(manifest: &str) -> Result<Table, Failure> {
    let parsed: Table = manifest.parse().map_err(|error| wrong(format!("{error}")))?;
    let found =
        parsed.get("package").and_then(|table| table.get("metadata")).and_then(|table| table.get("deb"));
    found
        .and_then(Value::as_table)
        .cloned()
        .ok_or_else(|| wrong("no table `package.metadata.deb`".to_owned()))
}

/// One row of `assets`: source, target, mode.
fn asset(row: &Value) -> Option<[&str; 3]> {
    let mut words = row.as_array()?.iter().map(Value::as_str);
    Some([words.next()??, words.next()??, words.next()??])
}

fn files(place: &Place, table: &Table, program: &Path, stage: &Path) -> Result<(), Failure> {
    let folder = place.root.join(FOLDER);
    for row in table.get("assets").and_then(Value::as_array).map_or(&[][..], Vec::as_slice) {
        let [source, target, mode] = asset(row).ok_or_else(|| wrong(format!("not an asset: {row}")))?;
        let sources = match source.strip_suffix("/*") {
            _ if source == PROGRAM => vec![program.to_owned()],
            Some(all) => entries(&folder.join(all))?,
            None => vec![folder.join(source)],
        };
        for source in sources {
            let mut path = stage.join(target);
            if target.ends_with('/') {
                path.push(source.file_name().unwrap_or_default());
            }
            copy(&source, &path)?;
            set_mode(place, mode, &path)?;
        }
    }
    let documents = stage.join("usr/share/doc/headrace");
    copy(&place.root.join("deploy/debian/copyright"), &documents.join("copyright"))?;
    let changelog = documents.join("changelog.Debian");
    copy(&place.root.join("target/package/changelog"), &changelog)?;
    set_mode(place, "644", &changelog)?;
    set_mode(place, "644", &documents.join("copyright"))?;
    capture(place.command("gzip").args(["--best", "--no-name"]).arg(&changelog), "gzip changelog.Debian")
        .map(|_| ())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let all = std::fs::read_dir(folder).and_then(|all| all.map(|entry| Ok(entry?.path())).collect());
    all.map_err(|error| wrong(format!("{}: {error}", folder.display())))
}

fn set_mode(place: &Place, mode: &str, path: &Path) -> Result<(), Failure> {
    capture(place.command("chmod").arg(mode).arg(path), &format!("chmod {mode} {}", path.display()))
        .map(|_| ())
}

/// `control`, `conffiles`, `md5sums` and the scripts.
fn control(
    place: &Place,
    table: &Table,
    stage: &Path,
    version: &str,
    machine: &str,
    depends: &str,
) -> Result<(), Failure> {
    let folder = stage.join("DEBIAN");
    let sums = capture(
        place
            .command("sh")
            .args(["-c", "find * -type f -print0 | sort -z | xargs -0 md5sum"])
            .current_dir(stage),
        "md5sum",
    )?;
    let size = capture(place.command("du").args(["-sk", "--apparent-size"]).arg(stage), "du -sk")?;
    let size = size.split_whitespace().next().unwrap_or("0");
    create(&folder)?;
    let word = |name: &str| table.get(name).and_then(Value::as_str).unwrap_or_default();
    let manifest: Table = read(&place.root.join(FOLDER).join("Cargo.toml"))?
        .parse()
        .map_err(|error| wrong(format!("{error}")))?;
    let summary =
        manifest.get("package").and_then(|package| package.get("description")).and_then(Value::as_str);
    let description: String = word("extended-description").lines().map(|line| format!(" {line}\n")).collect();
    let text = format!(
        "Package: headrace\nVersion: {version}\nArchitecture: {machine}\nMaintainer: {}\nSection: {}\nPriority: {}\n\
         Installed-Size: {size}\nDepends: {depends}\nDescription: {}\n{description}",
        word("maintainer"),
        word("section"),
        word("priority"),
        summary.unwrap_or_default(),
    );
    write(&folder.join("control"), &text)?;
    write(&folder.join("md5sums"), &sums)?;
    let kept = table.get("conf-files").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let kept: String = kept.iter().filter_map(Value::as_str).map(|path| format!("{path}\n")).collect();
    write(&folder.join("conffiles"), &kept)?;
    for script in SCRIPTS {
        let path = folder.join(script);
        copy(&place.root.join("deploy/debian").join(script), &path)?;
        set_mode(place, "755", &path)?;
    }
    Ok(())
}

/// The packages that this package depends on. `$auto` becomes the packages of the libraries that the program is linked
/// with.
fn depends(place: &Place, table: &Table, program: &Path, folder: &Path) -> Result<String, Failure> {
    let rule = table.get("depends").and_then(Value::as_str).unwrap_or_default();
    let libraries = capture(place.command("ldd").arg(program), "ldd").unwrap_or_default();
    if !libraries.contains("=>") {
        return Ok(rule.replace("$auto, ", ""));
    }
    // dpkg-shlibdeps looks for `debian/control` in its folder.
    let work = folder.join("shlibs");
    create(&work.join("debian"))?;
    write(&work.join("debian/control"), "Source: headrace\n\nPackage: headrace\nArchitecture: any\n")?;
    let mut command = place.command("dpkg-shlibdeps");
    command.arg("-O").arg("-e").arg(program).current_dir(&work);
    let found = capture(&mut command, "dpkg-shlibdeps -O -e headrace")
        .map_err(|failure| failure.with_remedy("Debian: apt-get install dpkg-dev"))?;
    std::fs::remove_dir_all(&work).map_err(|error| wrong(format!("{}: {error}", work.display())))?;
    let found = found.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(rule.replace("$auto", found.ok_or_else(|| wrong("dpkg-shlibdeps found no package".to_owned()))?))
}

/// The version in the first line of a Debian changelog.
fn version(changelog: &str) -> Result<String, Failure> {
    let version =
        changelog.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(version, _)| version);
    version.map(str::to_owned).ok_or_else(|| wrong("the changelog names no version".to_owned()))
}

fn wrong(what: String) -> Failure {
    Failure::new(
        format!("the Debian package: {what}"),
        "see package.metadata.deb in crates/headrace/Cargo.toml",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_the_program_and_every_row_is_an_asset() {
        let table = table(include_str!("../../crates/headrace/Cargo.toml")).unwrap();
        let rows = table["assets"].as_array().unwrap();
        assert!(rows.iter().all(|row| asset(row).is_some()), "{rows:?}");
        assert!(rows.iter().any(|row| asset(row).unwrap()[0] == PROGRAM));
    }

    #[test]
    fn the_version_is_read_from_the_changelog() {
        assert_eq!(version("headrace (1.2.3-1) unstable; urgency=medium\n").unwrap(), "1.2.3-1");
        assert!(version("headrace\n").is_err());
    }
}
