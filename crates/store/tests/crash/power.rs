//! Power cuts at chosen write boundaries, and a full disk, by a library that is preloaded into the child
//! (`tests/powercut.c`). Data that was written and not synced is lost, or only a random part of it is.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use headrace_store::CommitDurability;
use tempfile::TempDir;

use crate::child::{Said, start};
use crate::kill::listen;
use crate::ledger_file::{check, start_again};

/// Exit status of a child whose power was cut.
const CUT: i32 = 77;

pub(crate) struct World {
    /// Contains the library and everything that the cut does not affect.
    pub(crate) outside: TempDir,
    library: PathBuf,
}

impl World {
    pub(crate) fn new() -> Self {
        let outside = tempfile::tempdir().unwrap();
        let library = outside.path().join("powercut.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/powercut.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let compiled = Process::new(&compiler)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .args([source, "-ldl", "-lpthread"])
            .status();
        assert!(compiled.expect("a C compiler is needed").success(), "{compiler} failed on {source}");
        Self { outside, library }
    }

    pub(crate) fn environment(&self, inside: &Path) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("HEADRACE_CUT_DIR", inside.display().to_string()),
        ]
    }

    /// Number of writes of the script without a cut.
    fn writes(&self, durability: CommitDurability) -> u64 {
        let inside = fresh_inside();
        let report = self.outside.path().join("report");
        let mut environment = self.environment(&inside.1);
        environment.push(("HEADRACE_CUT_REPORT", report.display().to_string()));
        let mut child = start("script", &inside.1, 0, durability, &environment);
        let said: Vec<_> = listen(child.stdout.take().unwrap()).iter().collect();
        assert!(child.wait().unwrap().success());
        assert_eq!(said.last(), Some(&Said::Done));
        check(&inside.1, &said).unwrap();
        std::fs::read_to_string(report).unwrap().trim().parse().unwrap()
    }

    /// Runs the script until the power is cut at a write. Returns what is wrong then.
    fn cut(&self, at: u64, keep: Option<u64>, durability: CommitDurability) -> Result<(), String> {
        let inside = fresh_inside();
        let mut environment = self.environment(&inside.1);
        environment.push(("HEADRACE_CUT_AT", at.to_string()));
        environment.extend(keep.map(|seed| ("HEADRACE_CUT_KEEP", seed.to_string())));
        let mut child = start("script", &inside.1, 0, durability, &environment);
        let said: Vec<_> = listen(child.stdout.take().unwrap()).iter().collect();
        assert_eq!(child.wait().unwrap().code(), Some(CUT), "the power is cut at write {at}");
        check(&inside.1, &said)?;
        start_again(&inside.1, &said)
    }
}

/// A directory for the child, by its real path.
pub(crate) fn fresh_inside() -> (TempDir, PathBuf) {
    let inside = tempfile::tempdir().unwrap();
    let path = inside.path().canonicalize().unwrap();
    (inside, path)
}

/// Ten boundaries spread over the script, including the first and the last, or all of them.
fn boundaries(writes: u64) -> Vec<u64> {
    if std::env::var("HEADRACE_CUTS").as_deref() == Ok("all") {
        return (1..=writes).collect();
    }
    (0..10).map(|n| 1 + n * (writes - 1) / 9).collect()
}

#[test]
fn money_3_nothing_durable_is_lost_or_done_twice_through_power_cuts() {
    let world = World::new();
    let writes = world.writes(CommitDurability::Full);
    println!("the script makes {writes} writes");
    assert!(writes > 50);
    for at in boundaries(writes) {
        // Either all unsynced data is lost, or some of it survives, in any order and possibly torn.
        for keep in [None, Some(at), Some(at + 1_000_000)] {
            if let Err(wrong) = world.cut(at, keep, CommitDurability::Full) {
                panic!("cut at write {at} of {writes}, keeping {keep:?}: {wrong}");
            }
        }
    }
}

/// Proves that the test above can fail: if commits are not synced, the same cuts lose acknowledged changes.
#[test]
fn power_cuts_are_noticed_where_commits_are_not_synced() {
    let world = World::new();
    for durability in [CommitDurability::Normal, CommitDurability::Off] {
        let writes = world.writes(durability);
        let cuts = boundaries(writes);
        let lost = cuts.iter().filter(|at| world.cut(**at, None, durability).is_err()).count();
        println!("{durability:?}: {lost} of {} cuts lost something", cuts.len());
        assert!(lost * 2 > cuts.len(), "{durability:?}: only {lost} of {} cuts lost anything", cuts.len());
    }
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let world = World::new();
    let (_keep, inside) = fresh_inside();
    let full = world.outside.path().join("full");
    let mut environment = world.environment(&inside);
    environment.push(("HEADRACE_CUT_FULL", full.display().to_string()));
    let mut child = start("full disk", &inside, 0, CommitDurability::Full, &environment);
    let hearing = listen(child.stdout.take().unwrap());
    let mut said = Vec::new();
    let mut until = |wanted: fn(&Said) -> bool| loop {
        let word = hearing.recv_timeout(Duration::from_secs(60)).expect("the child speaks");
        said.push(word);
        if wanted(&word) {
            return;
        }
    };
    for _ in 0..3 {
        until(|word| matches!(word, Said::Settled(..)));
        std::fs::write(&full, "").unwrap();
        until(|word| *word == Said::Failed);
        until(|word| *word == Said::Unavailable);
        std::fs::remove_file(&full).unwrap();
        until(|word| matches!(word, Said::Held(_)));
        until(|word| matches!(word, Said::Settled(..)));
    }
    std::fs::write(inside.join("stop"), "").unwrap();
    until(|word| *word == Said::Done);
    assert!(child.wait().unwrap().success());
    check(&inside, &said).unwrap();
    start_again(&inside, &said).unwrap();
}
