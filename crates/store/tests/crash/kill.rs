//! `kill -9` at random moments under load, many times on the same ledger.

use std::io::{BufRead, BufReader};
use std::sync::mpsc;
use std::time::Duration;

use headrace_store::CommitDurability;
use headrace_store::journal::verify_file;

use crate::child::{Said, journal_path, start};
use crate::ledger_file::{check, start_again};

/// Receives the child's messages as they are printed.
pub(crate) fn listen(stdout: std::process::ChildStdout) -> mpsc::Receiver<Said> {
    let (heard, hearing) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout);
        let mut line = String::new();
        // A line that the kill cut off does not count.
        while lines.read_line(&mut line).is_ok_and(|length| length > 0) && line.ends_with('\n') {
            if let Some(said) = Said::heard(&line)
                && heard.send(said).is_err()
            {
                return;
            }
            line.clear();
        }
    });
    hearing
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Kills on one ledger before the test begins a new one, so that the checks take time in proportion.
const KILLS_PER_LEDGER: u64 = 20;

#[test]
fn money_3_nothing_durable_is_lost_or_done_twice_through_kill_9() {
    let crashes: u64 = std::env::var("HEADRACE_CRASHES").map_or(20, |count| count.parse().unwrap());
    let seed = std::env::var("HEADRACE_SEED").map_or_else(|_| fresh_seed(), |seed| seed.parse().unwrap());
    println!("seed {seed}: HEADRACE_SEED={seed} waits as long before each kill");
    let mut random = Random(seed);
    let mut left = crashes;
    while left > 0 {
        let kills = left.min(KILLS_PER_LEDGER);
        let said =
            kill_again_and_again(kills, &mut random).unwrap_or_else(|wrong| panic!("seed {seed}, {wrong}"));
        let settled = said.iter().filter(|said| matches!(said, Said::Settled(..))).count();
        println!("{kills} kills, {} acknowledgements, {settled} of them settlements", said.len());
        assert!(settled > 0, "the child never got to work");
        left -= kills;
    }
}

fn kill_again_and_again(kills: u64, random: &mut Random) -> Result<Vec<Said>, String> {
    let directory = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for run in 0..kills {
        let mut child = start("load", directory.path(), run, CommitDurability::Full, &[]);
        let hearing = listen(child.stdout.take().unwrap());
        // One child in four is killed while it opens the ledger, the others under load.
        let mut said = Vec::new();
        if !random.next().is_multiple_of(4) {
            said.push(hearing.recv_timeout(Duration::from_secs(60)).expect("the child opens the ledger"));
        }
        std::thread::sleep(Duration::from_micros(random.next() % 120_000));
        let beside = (run % 5 == 0 && !said.is_empty()).then(|| verify_file(&journal_path(directory.path())));
        child.kill().unwrap();
        child.wait().unwrap();
        match beside {
            Some(Ok(report)) if !report.ok() => {
                return Err(format!("run {run}, beside the child:\n{report}"));
            }
            Some(Err(error)) => return Err(format!("run {run}, beside the child: {error}")),
            _ => {}
        }
        said.extend(hearing.iter());
        all.extend(said);
        check(directory.path(), &all).map_err(|wrong| format!("run {run}: {wrong}"))?;
    }
    start_again(directory.path(), &all)?;
    Ok(all)
}

fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
