//! `xtask -- dist`: makes the files of a release page for one target. These are a Linux archive, a Debian package, an
//! image context, a list of the program's parts, checksums, and optionally a signature.

use std::path::{Path, PathBuf};

use crate::files::{copy, create, empty, fault, write};
use crate::shell::{Failure, Place, capture, show};
use crate::{deb, sbom};

/// The options of `dist`, for its help and its errors.
pub(crate) const USAGE: &str = "\
  dist                 the files of a release page, in target/downloads/TARGET, for this machine's target
    --target TARGET      for another target, such as x86_64-unknown-linux-musl
    --program PATH       package this program instead of compiling one
    --sign KEY           sign the checksums with this private SSH key
    --try                then install the archive and the package into temporary folders and run the README's first session
  dist --checksums DIR write SHA256SUMS for the files of a folder, and with --sign its signature
";

/// The shells that the program writes completions for.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];
/// The file of checksums. `SHA256SUMS.sig` is its signature.
pub(crate) const CHECKSUMS: &str = "SHA256SUMS";
/// The namespace of the signature, which `ssh-keygen -Y verify -n` must name.
pub(crate) const NAMESPACE: &str = "headrace";

/// Parsed arguments of `dist`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) target: Option<String>,
    pub(crate) program: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) checksums: Option<PathBuf>,
    pub(crate) try_it: bool,
    /// Compress the package in a second instead of half a minute.
    pub(crate) quick: bool,
}

impl Options {
    /// Parses the words after `dist`.
    pub(crate) fn parse(words: &[&str]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if *word == "--try" {
                options.try_it = true;
                continue;
            }
            let known = ["--target", "--program", "--sign", "--checksums"].contains(word);
            let value = known.then(|| words.next()).flatten();
            let Some(value) = value else {
                let fault = if known { "needs a value" } else { "is unknown" };
                return Err(Failure::new(format!("dist: `{word}` {fault}"), USAGE));
            };
            match *word {
                "--target" => options.target = Some((*value).to_owned()),
                "--program" => options.program = Some(value.into()),
                "--sign" => options.key = Some(value.into()),
                _ => options.checksums = Some(value.into()),
            }
        }
        Ok(options)
    }
}

/// The files that `dist` made.
#[derive(Debug)]
pub(crate) struct Release {
    /// The folder of all the files.
    pub(crate) folder: PathBuf,
    /// The archive's name without `.tar.gz`, which is also the name of its one folder.
    pub(crate) name: String,
    /// The Debian package. `None` if this machine has no `dpkg-deb`.
    pub(crate) package: Option<PathBuf>,
    /// The target that the program was compiled for.
    pub(crate) target: String,
}

impl Release {
    /// The list of the program's parts.
    pub(crate) fn sbom(&self) -> PathBuf {
        self.folder.join(format!("{}.cdx.json", self.name))
    }

    /// The archive.
    pub(crate) fn archive(&self) -> PathBuf {
        self.folder.join(format!("{}.tar.gz", self.name))
    }

    /// The context of an image.
    pub(crate) fn image(&self) -> PathBuf {
        self.folder.join(format!("{}-image.tar.gz", self.name))
    }
}

/// Makes every file of a release page for one target.
pub(crate) fn make(place: &Place, options: &Options) -> Result<Release, Failure> {
    let target = match &options.target {
        Some(target) => target.clone(),
        None => host(place)?,
    };
    let machine = machine(&target)?;
    let program = match &options.program {
        Some(program) => absolute(place, program)?,
        None => compile(place, &target)?,
    };
    let version = version(place, &program)?;
    let name = format!("headrace-{version}-{target}");
    let folder = place.target.join("downloads").join(&target);
    empty(&folder)?;
    let made = made_at(place);
    let release = Release { folder, name, package: None, target };
    archive(place, &release, &program, &made)?;
    image(place, &release, &program, machine, &made)?;
    let package = deb::make(place, &release.folder, &program, machine, &made, options.quick)?;
    if package.is_none() {
        println!("no dpkg-deb on this machine, so no Debian package (Debian: apt-get install dpkg-dev)");
    }
    let release = Release { package, ..release };
    write(&release.sbom(), &sbom::document(place, &release.target, &version, &made)?)?;
    checksums(place, &release.folder)?;
    if let Some(key) = &options.key {
        sign(place, &release.folder, &absolute(place, key)?)?;
    }
    println!("{} has the files of a release page", release.folder.display());
    Ok(release)
}

/// Writes `SHA256SUMS` for every file of the folder, by name.
pub(crate) fn checksums(place: &Place, folder: &Path) -> Result<(), Failure> {
    let fault = |error: std::io::Error| {
        Failure::new(format!("{}: {error}", folder.display()), "name a folder of files")
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fault)? {
        let name = entry.map_err(fault)?.file_name().to_string_lossy().into_owned();
        if !name.starts_with(CHECKSUMS) {
            names.push(name);
        }
    }
    names.sort();
    let sums = capture(
        place.command("sha256sum").arg("--").args(&names).current_dir(folder),
        &format!("sha256sum -- {}", names.join(" ")),
    )?;
    write(&folder.join(CHECKSUMS), &sums)
}

/// Signs `SHA256SUMS` with a private SSH key. The signature is `SHA256SUMS.sig`.
pub(crate) fn sign(place: &Place, folder: &Path, key: &Path) -> Result<(), Failure> {
    let signature = folder.join(format!("{CHECKSUMS}.sig"));
    // ssh-keygen asks before it overwrites a signature.
    if signature.exists() {
        std::fs::remove_file(&signature).map_err(|error| fault(&signature, &error))?;
    }
    let line = format!("ssh-keygen -Y sign -f {} -n {NAMESPACE} {CHECKSUMS}", key.display());
    let mut command = place.command("ssh-keygen");
    command.args(["-Y", "sign", "-f"]).arg(key).args(["-n", NAMESPACE, CHECKSUMS]).current_dir(folder);
    show(&mut command, &line).map_err(|failure| {
        failure.with_remedy(
            "install OpenSSH's client, and name a private key file that only you can read (chmod 600)",
        )
    })
}

/// The target of this machine's compiler.
fn host(place: &Place) -> Result<String, Failure> {
    let said = capture(place.command("rustc").arg("-vV"), "rustc -vV")?;
    let line = said.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).ok_or_else(|| Failure::new("`rustc -vV` names no host", "name one with --target"))
}

/// Debian's name of the target's processor, which image platforms use too.
fn machine(target: &str) -> Result<&'static str, Failure> {
    let processor = if target.contains("-linux-") { target.split('-').next() } else { None };
    match processor {
        Some("x86_64") => Ok("amd64"),
        Some("aarch64") => Ok("arm64"),
        _ => Err(Failure::new(
            format!("dist: `{target}` is not a target that a release has files for"),
            "name a Linux target of x86_64 or aarch64 with --target",
        )),
    }
}

/// Compiles the program with the release profile of distributions. A program for musl must be static.
fn compile(place: &Place, target: &str) -> Result<PathBuf, Failure> {
    let musl = target.ends_with("-musl");
    let compiler = format!("CC_{}", target.replace('-', "_"));
    let set = (musl && std::env::var_os(&compiler).is_none()).then_some((compiler.as_str(), "musl-gcc"));
    let arguments = ["build", "--profile", "dist", "--locked", "--target", target, "-p", "headrace"];
    place.cargo(&arguments, set.as_slice())?;
    let program = place.target.join(target).join("dist/headrace");
    let dynamic = capture(place.command("ldd").arg(&program), "ldd").unwrap_or_default();
    if musl && dynamic.contains("=>") {
        let what = format!("{} is not static:\n{dynamic}", program.display());
        return Err(Failure::new(what, "find the library that is linked dynamically"));
    }
    Ok(program)
}

fn absolute(place: &Place, path: &Path) -> Result<PathBuf, Failure> {
    let path = place.root.join(path);
    std::fs::canonicalize(&path).map_err(|error| fault(&path, &error))
}

fn version(place: &Place, program: &Path) -> Result<String, Failure> {
    let said = capture(place.command(program).arg("--version"), &format!("{} --version", program.display()))?;
    let version = said.lines().next().and_then(|line| line.strip_prefix("headrace "));
    version.map(str::to_owned).ok_or_else(|| {
        Failure::new(
            format!("{} is not headrace: --version printed\n{said}", program.display()),
            "name another file",
        )
    })
}

/// Timestamp of every file, in seconds since 1970: `SOURCE_DATE_EPOCH`, or the time of the commit, or 0.
fn made_at(place: &Place) -> String {
    let seconds = std::env::var("SOURCE_DATE_EPOCH")
        .ok()
        .or_else(|| capture(place.command("git").args(["log", "-1", "--format=%ct"]), "git log").ok());
    seconds
        .map(|seconds| seconds.trim().to_owned())
        .filter(|seconds| !seconds.is_empty())
        .unwrap_or_else(|| "0".to_owned())
}

/// Packs the archive: the program, its licence, README and changelog, completions, manual pages, and `deploy`.
fn archive(place: &Place, release: &Release, program: &Path, made: &str) -> Result<(), Failure> {
    let stage = release.folder.join("stage");
    let folder = stage.join(&release.name);
    create(&folder.join("man"))?;
    copy(program, &folder.join("headrace"))?;
    for name in ["LICENSE", "README.md", "CHANGELOG.md"] {
        copy(&place.root.join(name), &folder.join(name))?;
    }
    show(place.command("cp").arg("-r").arg(place.root.join("deploy")).arg(&folder), "cp -r deploy")?;
    create(&folder.join("completions"))?;
    for shell in SHELLS {
        let line = format!("headrace completions {shell}");
        let script = capture(place.command(program).args(["completions", shell]), &line)?;
        write(&folder.join(format!("completions/headrace.{shell}")), &script)?;
    }
    capture(place.command(program).arg("man").arg(folder.join("man/man1")), "headrace man")?;
    pack(place, &stage, &release.name, &release.archive(), made)
}

/// Packs the context for `docker build`: the release Dockerfile, the program in its platform's folder, and an empty
/// `data`.
fn image(place: &Place, release: &Release, program: &Path, machine: &str, made: &str) -> Result<(), Failure> {
    let stage = release.folder.join("stage");
    empty(&stage.join("data"))?;
    copy(&place.root.join("deploy/release.Dockerfile"), &stage.join("Dockerfile"))?;
    copy(program, &stage.join(machine).join("headrace"))?;
    pack(place, &stage, ".", &release.image(), made)
}

/// Packs one entry of the folder `stage` reproducibly, and removes `stage`.
fn pack(place: &Place, stage: &Path, entry: &str, archive: &Path, made: &str) -> Result<(), Failure> {
    let mut command = place.command("tar");
    command.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=go-w"]);
    command.arg(format!("--mtime=@{made}")).arg("-C").arg(stage).arg("-czf").arg(archive).arg(entry);
    show(&mut command, &format!("tar -czf {}", archive.display()))?;
    std::fs::remove_dir_all(stage).map_err(|error| fault(stage, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_unknown_ones_are_refused() {
        let parsed = Options::parse(&["--target", "x", "--sign", "key", "--try"]).unwrap();
        let wanted =
            Options { target: Some("x".into()), key: Some("key".into()), try_it: true, ..Options::default() };
        assert_eq!(parsed, wanted);
        for (words, fault) in
            [(&["--target"][..], "needs a value"), (&["--signed", "x"], "`--signed` is unknown")]
        {
            let error = Options::parse(words).unwrap_err().to_string();
            assert!(error.contains(fault) && error.contains("--program"), "{error}");
        }
    }

    #[test]
    fn targets_have_debians_names_for_their_processors() {
        assert_eq!(machine("x86_64-unknown-linux-musl").unwrap(), "amd64");
        assert_eq!(machine("aarch64-unknown-linux-gnu").unwrap(), "arm64");
        for other in ["x86_64-apple-darwin", "riscv64gc-unknown-linux-gnu", "linux"] {
            assert!(machine(other).unwrap_err().to_string().contains(other));
        }
    }
}
