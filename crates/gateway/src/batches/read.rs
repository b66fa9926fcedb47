//! The requests of a batch out of its file: line by line, never whole in memory, each with a place and an id of its own. Runs where it
//! may wait for a disk. Must not know what a request asks for.

use std::collections::HashSet;

use headrace_objects::{BatchFault, BatchRecord, BatchStore, LineRecord, ObjectError};
use headrace_wire::{WireLimits, batch_line};
use tokio_util::sync::CancellationToken;

/// The longest line.
const MOST_LINE_BYTES: usize = 16 << 20;
/// Bytes and requests that are stored in one step.
const STORED_BYTES: usize = 1 << 20;
const STORED_LINES: usize = 512;
/// Faults that are told of a file; behind them it is read no further.
const MOST_FAULTS: usize = 100;

/// What came of it.
pub(super) enum Read {
    /// All requests are stored.
    Whole,
    /// Some are none: nothing of the file is run.
    Faults(Vec<BatchFault>),
    /// Somebody wanted the batch to end meanwhile.
    Stopped,
}

/// Reads a batch's file and stores its requests. What an earlier try stored is removed first.
///
/// # Errors
/// What the store says.
fn read(
    store: &dyn BatchStore,
    batch: &BatchRecord,
    limits: &WireLimits,
    ends: &CancellationToken,
) -> Result<Read, ObjectError> {
    // One that came with its requests has been stored whole, or nobody was ever told of it.
    let Some(input) = &batch.state.input else {
        let message = "the server stopped while its requests were being stored".to_owned();
        return Ok(Read::Faults(vec![fault_of_file("interrupted", message)]));
    };
    store.clear_lines(&batch.id)?;
    let most = store.limits().max_requests_per_batch;
    let mut lines = Lines {
        store,
        batch,
        limits,
        most,
        number: 0,
        at: 0,
        ids: HashSet::new(),
        stored: Vec::new(),
        bytes: 0,
        faults: Vec::new(),
    };
    let (mut at, mut held) = (0, Vec::new());
    loop {
        if ends.is_cancelled() {
            return Ok(Read::Stopped);
        }
        let some = store.read(input, at)?;
        if some.is_empty() {
            break;
        }
        at += some.len() as u64;
        let mut rest = some.as_slice();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, more) = rest.split_at(end);
            held.extend_from_slice(line);
            lines.take(&held)?;
            held.clear();
            rest = more.get(1..).unwrap_or_default();
        }
        held.extend_from_slice(rest);
        if held.len() > MOST_LINE_BYTES {
            lines.fault("line_too_long", format!("A line may have {MOST_LINE_BYTES} bytes."), None);
        }
        if lines.faults.len() >= MOST_FAULTS || held.len() > MOST_LINE_BYTES {
            return Ok(Read::Faults(lines.faults));
        }
    }
    lines.take(&held)?;
    lines.end()
}

/// Reads as [`read`] does. Requests that have no room beside what the project keeps are a fault of the batch: waiting for room would
/// keep its place from others.
///
/// # Errors
/// What the store says.
pub(super) fn read_within_bounds(
    store: &dyn BatchStore,
    batch: &BatchRecord,
    limits: &WireLimits,
    ends: &CancellationToken,
) -> Result<Read, ObjectError> {
    match read(store, batch, limits, ends) {
        Err(full @ ObjectError::Full { .. }) => {
            let message = format!(
                "The requests are kept beside the file until they have ended, and there is no room for them: {full}. Delete files, or wait for other batches."
            );
            Ok(Read::Faults(vec![fault_of_file("objects_full", message)]))
        }
        read => read,
    }
}

/// A fault of a whole file.
fn fault_of_file(code: &str, message: String) -> BatchFault {
    BatchFault { code: code.to_owned(), message, param: None, line: None }
}

struct Lines<'a> {
    store: &'a dyn BatchStore,
    batch: &'a BatchRecord,
    limits: &'a WireLimits,
    most: u64,
    /// Of the line that is read, from 1 on.
    number: u64,
    /// The place of the next request.
    at: u64,
    /// Hashes of the ids so far: an id may be long.
    ids: HashSet<[u8; 32]>,
    stored: Vec<LineRecord>,
    bytes: usize,
    faults: Vec<BatchFault>,
}

impl Lines<'_> {
    fn take(&mut self, line: &[u8]) -> Result<(), ObjectError> {
        self.number += 1;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        if self.at >= self.most {
            if self.at == self.most {
                let message =
                    format!("A batch may have {} requests (`objects.max_requests_per_batch`).", self.most);
                self.fault("too_many_requests", message, None);
            }
            self.at = self.most + 1;
            return Ok(());
        }
        match batch_line(line, self.batch.state.endpoint, self.limits) {
            Ok((custom_id, _)) if !self.ids.insert(*blake3::hash(custom_id.as_bytes()).as_bytes()) => {
                let message = "Another request of the file has this `custom_id`.".to_owned();
                self.fault("duplicate_custom_id", message, Some("custom_id".to_owned()));
            }
            Ok((custom_id, body)) => {
                self.bytes += body.len();
                self.stored.push(LineRecord { at: self.at, custom_id, body, noted: None });
                self.at += 1;
                if self.bytes >= STORED_BYTES || self.stored.len() >= STORED_LINES {
                    self.store()?;
                }
            }
            Err(fault) => self.fault(fault.code, fault.message, fault.param),
        }
        Ok(())
    }

    fn fault(&mut self, code: &str, message: String, param: Option<String>) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(BatchFault { code: code.to_owned(), message, param, line: Some(self.number) });
        }
    }

    fn store(&mut self) -> Result<(), ObjectError> {
        let lines = std::mem::take(&mut self.stored);
        self.bytes = 0;
        // Where one was faulty nothing will run.
        if self.faults.is_empty() {
            self.store.add_lines(&self.batch.id, &lines)?;
        }
        Ok(())
    }

    fn end(mut self) -> Result<Read, ObjectError> {
        self.store()?;
        if self.at == 0 && self.faults.is_empty() {
            self.faults.push(fault_of_file("empty_file", "The file has no requests.".to_owned()));
        }
        Ok(if self.faults.is_empty() { Read::Whole } else { Read::Faults(self.faults) })
    }
}
