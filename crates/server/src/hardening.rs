//! Hardens a server's process before it reads or opens anything. Secrets leave the environment, core dumps cannot leak
//! keys or prompts, and its files are private to their owner. Must not know what the secrets are for.

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};

use secrecy::SecretString;
use secrecy::zeroize::Zeroizing;

use crate::first_start::{KEY_VARIABLE, first_key};

/// Variables that hold secrets. A server needs the first. The second is often exported beside it, for `headrace chat`.
const SECRET_VARIABLES: [&str; 2] = [KEY_VARIABLE, "HEADRACE_API_KEY"];

/// The secrets found, and the measures that failed.
pub(crate) struct HardeningReport {
    /// The key from the environment, which has been wiped there.
    pub(crate) first_key: Option<SecretString>,
    /// Measures that this system does not allow, for the log.
    pub(crate) shortcomings: Vec<String>,
}

/// Hardens the process. Must come first, while there is only one thread and no other code has read the environment.
pub(crate) fn harden() -> HardeningReport {
    let mut shortcomings = Vec::new();
    let first_key = first_key();
    // Wiping comes before `not_dumpable`, while the process may still open its own memory.
    let mut doing = |what: &str, done: io::Result<()>| {
        if let Err(error) = done {
            shortcomings.push(format!("{what}: {error}"));
        }
    };
    doing("secrets stay in the environment, which others of this user can read", wipe_environment());
    doing("core dumps cannot be limited", no_core_dumps());
    doing("core dumps cannot be forbidden", not_dumpable());
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    HardeningReport { first_key, shortcomings }
}

fn no_core_dumps() -> io::Result<()> {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    Ok(rustix::process::setrlimit(rustix::process::Resource::Core, none)?)
}

/// Also stops dumps that are piped to a program, which a size limit does not. Other processes of this user cannot read
/// the memory either.
#[cfg(target_os = "linux")]
fn not_dumpable() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(not(target_os = "linux"))]
fn not_dumpable() -> io::Result<()> {
    Ok(())
}

/// Overwrites the values of the secret variables with zeros, in the block from the kernel that `/proc/PID/environ`
/// shows. Later reads find these variables empty.
fn wipe_environment() -> io::Result<()> {
    if SECRET_VARIABLES.iter().all(|name| std::env::var_os(name).is_none_or(|value| value.is_empty())) {
        return Ok(());
    }
    let block = Zeroizing::new(std::fs::read("/proc/self/environ")?);
    let start = block_start(&std::fs::read_to_string("/proc/self/stat")?);
    let start = start.ok_or_else(|| io::Error::other("/proc/self/stat does not say where it is"))?;
    let mut memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    for (at, value) in secret_values(&block) {
        let length = value.len();
        let mut found = Zeroizing::new(vec![0; length]);
        memory.seek(SeekFrom::Start(start.saturating_add(at)))?;
        memory.read_exact(&mut found)?;
        // The layout is the kernel's. Bytes that do not match the value are left alone.
        if *found != value {
            return Err(io::Error::other("it is not where /proc/self/stat says"));
        }
        memory.seek(SeekFrom::Start(start.saturating_add(at)))?;
        memory.write_all(&vec![0; length])?;
    }
    Ok(())
}

/// Each secret value of an environment block, with its offset.
fn secret_values(block: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut at = 0_u64;
    block.split(|byte| *byte == 0).filter_map(move |entry| {
        let start = at;
        at = start.saturating_add(u64::try_from(entry.len()).ok()?).saturating_add(1);
        let value = SECRET_VARIABLES
            .iter()
            .find_map(|name| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        let before = u64::try_from(entry.len().checked_sub(value.len())?).ok()?;
        Some((start.saturating_add(before), value))
    })
}

/// The start of the environment block: field 50 of `/proc/PID/stat` (proc_pid_stat(5)). The second field is the
/// program's name in brackets, which may contain any character.
fn block_start(stat: &str) -> Option<u64> {
    const AFTER_NAME: usize = 50 - 3;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(AFTER_NAME)?.parse().ok().filter(|start| *start != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_values_are_found_where_they_stand() {
        let block =
            b"A=b\0HEADRACE_BOOTSTRAP_KEY=sk-1\0HEADRACE_BOOTSTRAP_KEYS=no\0\0HEADRACE_API_KEY=sk-22\0X\0";
        let found: Vec<_> = secret_values(block).collect();
        assert_eq!(found, [(27, &b"sk-1"[..]), (77, &b"sk-22"[..])]);
        for (at, value) in found {
            let at = usize::try_from(at).unwrap();
            assert_eq!(&block[at..at + value.len()], value);
        }
    }

    #[test]
    fn the_start_of_the_block_is_field_50() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("1 (a) b) {}", fields.join(" "));
        assert_eq!(block_start(&stat), Some(50));
        for bad in ["", "1 (a) S 1 2", "no brackets"] {
            assert_eq!(block_start(bad), None, "{bad}");
        }
    }
}
