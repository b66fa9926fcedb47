//! Formats batches as text. Must not know where they come from.

use headrace_client::{Batch, BatchPage};

use headrace_terminal::output;

/// A table of batches.
pub(super) fn list(page: &BatchPage) -> String {
    if page.batches.is_empty() {
        return "no batches\n".to_owned();
    }
    let row = |batch: &Batch| {
        let (done, total) = (ended(batch), batch.counts.total);
        let cells = [batch.id.clone(), batch.status.clone(), format!("{done} of {total}")];
        let more = [batch.counts.failed.to_string(), batch.endpoint.clone(), when(batch, "created_at")];
        cells.into_iter().chain(more).collect()
    };
    let head = ["id", "status", "ended", "failed", "endpoint", "created"];
    let mut text = output::table(&head, page.batches.iter().map(row).collect());
    if let (true, Some(last)) = (page.has_more, page.batches.last()) {
        text += &format!("there are more: headrace batches list --after {}\n", last.id);
    }
    text
}

/// All details of one batch.
pub(super) fn whole(batch: &Batch) -> String {
    let mut text = format!("{}\n", batch.id);
    let mut line = |name: &str, what: String| text += &format!("  {name:<9} {what}\n");
    line("status", format!("{}: {}", batch.status, counts(batch)));
    line("endpoint", batch.endpoint.clone());
    line("created", when(batch, "created_at"));
    if let Some(field) = ended_at(batch) {
        line("ended", when(batch, field));
    } else {
        line("until", format!("{} ({})", when(batch, "expires_at"), batch.window));
    }
    for (name, file) in
        [("requests", &batch.input_file), ("answers", &batch.output_file), ("errors", &batch.error_file)]
    {
        if let Some(file) = file {
            line(name, file.clone());
        }
    }
    text + &faults(batch)
}

/// How many of its requests were answered, failed, or are still to come.
pub(super) fn counts(batch: &Batch) -> String {
    let counts = batch.counts;
    match (counts.total, batch.is_over()) {
        (0, true) => "nothing ran".to_owned(),
        (0, false) => "its file is being read".to_owned(),
        (total, _) => format!("{} answered, {} failed, of {total}", counts.completed, counts.failed),
    }
}

/// The faults of its input lines.
pub(super) fn faults(batch: &Batch) -> String {
    let lines = batch.faults.iter().map(|fault| match fault.line {
        Some(line) => format!("  line {line}: {}\n", fault.message),
        None => format!("  {}\n", fault.message),
    });
    lines.collect()
}

/// The number of requests that have been answered or have failed.
pub(super) fn ended(batch: &Batch) -> u64 {
    batch.counts.completed.saturating_add(batch.counts.failed)
}

fn ended_at(batch: &Batch) -> Option<&'static str> {
    match batch.status.as_str() {
        "completed" => Some("completed_at"),
        "failed" => Some("failed_at"),
        "expired" => Some("expired_at"),
        "cancelled" => Some("cancelled_at"),
        _ => None,
    }
}

fn when(batch: &Batch, field: &str) -> String {
    let nanos = batch.seconds(field).and_then(|seconds| seconds.checked_mul(1_000_000_000));
    crate::commands::time(nanos.map(headrace_domain::UnixNanos::new))
}
