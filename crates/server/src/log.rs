//! The log: text or JSON objects on standard error. A thread of its own writes it, so that a slow or closed reader
//! delays no call. Lines that do not fit its queue are counted and reported. Must not know what is logged.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::reload::LogFilter;

/// Maximum number of lines that wait to be written.
const QUEUE_LINES: usize = 8192;

/// A line, or a request to signal when all earlier lines are written.
enum LogItem {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// The log's queue.
#[derive(Clone)]
pub(crate) struct LogQueue {
    queue: SyncSender<LogItem>,
    dropped: Arc<AtomicU64>,
}

impl LogQueue {
    /// Starts the log. Also returns the function that replaces its filter.
    ///
    /// # Errors
    /// Returns an error if a log already exists, or its thread cannot start.
    pub(crate) fn start(filter: EnvFilter, json: bool) -> Result<(Self, LogFilter), String> {
        let (queue, lines) = sync_channel(QUEUE_LINES);
        let dropped = Arc::<AtomicU64>::default();
        let log = Self { queue, dropped: Arc::clone(&dropped) };
        let writer = std::thread::Builder::new().name("headrace-log".to_owned());
        writer
            .spawn(move || write(&lines, &dropped, &mut io::stderr()))
            .map_err(|error| error.to_string())?;
        // Only a terminal gets colours; a file or a collector gets none.
        let colors = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let format = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log.clone());
        // A line that cannot be written is lost. Reporting it on the same stream would panic at the call site.
        let format = format.with_ansi(colors).log_internal_errors(false);
        // Set once, at the start of the process.
        let reloads: LogFilter = match json {
            true => {
                let format = format.event_format(JsonFormat).with_filter_reloading();
                let handle = format.reload_handle();
                format.try_init().map_err(|error| error.to_string())?;
                Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
            }
            false => {
                let format = format.with_filter_reloading();
                let handle = format.reload_handle();
                format.try_init().map_err(|error| error.to_string())?;
                Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
            }
        };
        Ok((log, reloads))
    }

    /// Queues a line. A line that does not fit is dropped and counted.
    pub(crate) fn line(&self, text: Vec<u8>) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(LogItem::Line(text)) {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// The number of dropped lines.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Waits until everything logged so far is written, for at most `within`.
    pub(crate) fn flush(&self, within: Duration) {
        let (done, written) = sync_channel(1);
        // If the queue is full and no reader drains it, waiting would be in vain.
        if self.queue.try_send(LogItem::Flush(done)).is_ok() {
            let _ = written.recv_timeout(within);
        }
    }
}

/// Writes lines until every sender is dropped.
fn write(lines: &Receiver<LogItem>, dropped: &AtomicU64, out: &mut dyn Write) {
    let mut told = 0;
    for item in lines {
        match item {
            // The reader may be gone.
            LogItem::Line(line) => drop(out.write_all(&line)),
            LogItem::Flush(done) => drop(done.try_send(())),
        }
        let lost = dropped.load(Relaxed);
        if lost > told {
            let _ = writeln!(
                out,
                "headrace: {} lines of the log were dropped: they were not read in time",
                lost - told
            );
            told = lost;
        }
    }
}

/// Formats events as JSON objects, one per line.
struct JsonFormat;

impl<S, N> FormatEvent<S, N> for JsonFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let about = event.metadata();
        let mut object = JsonFields(Map::new());
        object.put("timestamp", time);
        object.put("level", about.level().to_string());
        object.put("target", about.target());
        event.record(&mut object);
        writeln!(writer, "{}", Value::Object(object.0))
    }
}

/// The fields of an event, in their order.
struct JsonFields(Map<String, Value>);

impl JsonFields {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for JsonFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }
}

/// A line that is being written. It is queued when dropped.
pub(crate) struct LogLine<'a> {
    log: &'a LogQueue,
    text: Vec<u8>,
}

impl Write for LogLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine<'_> {
    fn drop(&mut self) {
        self.log.line(std::mem::take(&mut self.text));
    }
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLine { log: self, text: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_told_and_nobody_waits() {
        let (queue, lines) = sync_channel(2);
        let log = LogQueue { queue, dropped: Arc::default() };
        for number in 0..5 {
            writeln!(log.make_writer(), "line {number}").unwrap();
        }
        assert_eq!(log.dropped(), 3);
        let dropped = Arc::clone(&log.dropped);
        drop(log);
        let mut out = Vec::new();
        write(&lines, &dropped, &mut out);
        let text = String::from_utf8(out).unwrap();
        let told = "headrace: 3 lines of the log were dropped: they were not read in time\n";
        assert_eq!(text, format!("line 0\n{told}line 1\n"));
    }
}
