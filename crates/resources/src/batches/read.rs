//! Reads the requests of a batch from its file, line by line and never whole in memory. Each request gets an index
//! and needs a unique `custom_id`. Runs where blocking on a disk is allowed. Must not know what a request asks for.

use std::collections::HashSet;

use headrace_objects::{BatchFault, BatchRecord, BatchStore, LineRecord, ObjectError};
use headrace_wire::WireLimits;
use headrace_wire::openai::batch_line;
use tokio_util::sync::CancellationToken;

/// The longest line, in bytes.
const MOST_LINE_BYTES: usize = 16 << 20;
/// The bytes and the requests that are stored in one step.
const STORED_BYTES: usize = 1 << 20;
const STORED_LINES: usize = 512;
/// The most faults that are reported for a file. Reading stops there.
const MOST_FAULTS: usize = 100;

/// The result of reading a file.
pub(super) enum ReadOutcome {
    /// All requests are stored.
    Whole,
    /// Some lines are not valid requests, so nothing of the file is run.
    Faults(Vec<BatchFault>),
    /// The batch was cancelled meanwhile.
    Stopped,
}

/// Reads a batch's file and stores its requests. First removes what an earlier attempt stored.
///
/// # Errors
/// The errors of the store.
fn read(
    store: &dyn BatchStore,
    batch: &BatchRecord,
    limits: &WireLimits,
    ends: &CancellationToken,
) -> Result<ReadOutcome, ObjectError> {
    // A batch that came with its requests is in this state only if storing them was interrupted. Its client never got
    // an id.
    let Some(input) = &batch.state.input else {
        let message = "the server stopped while its requests were being stored".to_owned();
        return Ok(ReadOutcome::Faults(vec![fault_of_file("interrupted", message)]));
    };
    store.clear_lines(&batch.id)?;
    let most = store.limits().max_requests_per_batch;
    let mut lines = BatchFileReader {
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
            return Ok(ReadOutcome::Stopped);
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
            return Ok(ReadOutcome::Faults(lines.faults));
        }
    }
    lines.take(&held)?;
    lines.end()
}

/// Reads like [`read`]. If the project has no space left for the requests, that is a fault of the batch: waiting for
/// space would keep its slot from others.
///
/// # Errors
/// The errors of the store.
pub(super) fn read_within_bounds(
    store: &dyn BatchStore,
    batch: &BatchRecord,
    limits: &WireLimits,
    ends: &CancellationToken,
) -> Result<ReadOutcome, ObjectError> {
    match read(store, batch, limits, ends) {
        Err(full @ ObjectError::Full { .. }) => {
            let message = format!(
                "The requests are kept beside the file until they have ended, and there is no room for them: {full}. Delete files, or wait for other batches."
            );
            Ok(ReadOutcome::Faults(vec![fault_of_file("objects_full", message)]))
        }
        read => read,
    }
}

/// A fault of the file as a whole.
fn fault_of_file(code: &str, message: String) -> BatchFault {
    BatchFault { code: code.to_owned(), message, param: None, line: None }
}

struct BatchFileReader<'a> {
    store: &'a dyn BatchStore,
    batch: &'a BatchRecord,
    limits: &'a WireLimits,
    most: u64,
    /// Number of the current line, counted from 1.
    number: u64,
    /// Index of the next request.
    at: u64,
    /// Hashes of the ids so far, because an id may be long.
    ids: HashSet<[u8; 32]>,
    stored: Vec<LineRecord>,
    bytes: usize,
    faults: Vec<BatchFault>,
}

impl BatchFileReader<'_> {
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
        // After a fault nothing of the file will run.
        if self.faults.is_empty() {
            self.store.add_lines(&self.batch.id, &lines)?;
        }
        Ok(())
    }

    fn end(mut self) -> Result<ReadOutcome, ObjectError> {
        self.store()?;
        if self.at == 0 && self.faults.is_empty() {
            self.faults.push(fault_of_file("empty_file", "The file has no requests.".to_owned()));
        }
        Ok(if self.faults.is_empty() { ReadOutcome::Whole } else { ReadOutcome::Faults(self.faults) })
    }
}
