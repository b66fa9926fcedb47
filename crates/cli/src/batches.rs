//! `headrace batches`: sends files of requests and reads their results, as any client of the public API does. Must not
//! know the server's internals.

mod requests;
mod view;

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headrace_client::{Batch, Client, ClientError, FileContent, NewBatch};
use headrace_server_access::{ReachedServer, advice, reach};
use headrace_terminal::output;
use headrace_terminal::progress::ProgressLine;
use serde_json::{Value, json};

use crate::arguments::batches::{BatchesArgs, BatchesCommand, SubmitArgs};

/// Exit status after Ctrl-C, by the convention of shells: 128 plus the signal's number.
const INTERRUPTED: u8 = 130;
/// Pause between two looks at a batch: the first and the longest.
const LOOKS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// Interval at which the progress of an upload is updated.
const SENDING: Duration = Duration::from_millis(100);

/// Why a command failed.
enum CommandFailure {
    /// The request to the server failed.
    Asked(ClientError),
    /// Any other failure, as a message.
    Other(String),
}

impl From<ClientError> for CommandFailure {
    fn from(error: ClientError) -> Self {
        Self::Asked(error)
    }
}

/// Runs the command. Exit status 0 on success, 1 on failure or if an awaited batch ended without being completed, 130
/// after Ctrl-C.
pub(crate) fn run(args: &BatchesArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(obey(args)),
        Err(error) => output::fail(&error.to_string()),
    }
}

async fn obey(args: &BatchesArgs) -> ExitCode {
    // A file that cannot be sent is refused before a server is needed.
    let checked = match &args.command {
        BatchesCommand::Submit(submit) => match requests::read(&submit.file, submit.endpoint) {
            Ok(requests) => Some((submit, requests)),
            Err(why) => return output::fail(&why),
        },
        _ => None,
    };
    let mut has_key = headrace_server_access::arguments::given_key(&args.caller.key).is_some();
    let done = async {
        let ReachedServer { config, lender } = reach(&args.caller).await?;
        has_key = config.key.is_some();
        let batch_client =
            BatchClient { client: Client::new(config)?, json: args.json, lent: lender.is_some() };
        match &args.command {
            BatchesCommand::Submit(_) => match checked {
                Some((submit, requests)) => batch_client.submit(submit, requests).await,
                None => Ok(ExitCode::FAILURE),
            },
            BatchesCommand::List { limit, after } => batch_client.list(*limit, after.as_deref()).await,
            BatchesCommand::Show { id } => batch_client.show(&batch_client.client.batch(id).await?),
            BatchesCommand::Cancel { id } => batch_client.cancel(id).await,
            BatchesCommand::Results { id, errors, output } => {
                batch_client.results(id, *errors, output.as_deref()).await
            }
            BatchesCommand::Wait { id, timeout } => batch_client.wait(id, *timeout).await,
        }
    };
    match done.await {
        Ok(code) => code,
        Err(CommandFailure::Other(why)) => output::fail(&why),
        Err(CommandFailure::Asked(error)) => {
            let code = output::fail(&error.to_string());
            if let Some(advice) = advice(&error, has_key).or_else(|| advice_on_batches(&error)) {
                output::note(&format!("  {advice}"));
            }
            code
        }
    }
}

fn advice_on_batches(error: &ClientError) -> Option<&'static str> {
    let ClientError::Api(error) = error else { return None };
    match error.code.as_str() {
        "batch_not_found" => Some("`headrace batches list` shows those of the key's project."),
        "file_not_found" => Some("Its files were deleted, or were kept for as long as they are kept."),
        _ => None,
    }
}

/// The client, and how its answers are shown.
struct BatchClient {
    client: Client,
    json: bool,
    /// Whether the key is lent, and so expires after some hours.
    lent: bool,
}

impl BatchClient {
    fn print(&self, json: &Value, text: &str) {
        if self.json {
            output::say(&format!("{json:#}\n"));
        } else {
            output::say(text);
        }
    }

    async fn list(&self, limit: u32, after: Option<&str>) -> Result<ExitCode, CommandFailure> {
        let page = self.client.batches(limit, after).await?;
        let json: Vec<&Value> = page.batches.iter().map(|batch| &batch.json).collect();
        self.print(&json!({"data": json, "has_more": page.has_more}), &view::list(&page));
        Ok(ExitCode::SUCCESS)
    }

    fn show(&self, batch: &Batch) -> Result<ExitCode, CommandFailure> {
        self.print(&batch.json, &view::whole(batch));
        Ok(ExitCode::SUCCESS)
    }

    async fn cancel(&self, id: &str) -> Result<ExitCode, CommandFailure> {
        let batch = self.client.cancel_batch(id).await?;
        let text = format!("{id} is {}: {}\n", batch.status, view::counts(&batch));
        self.print(&batch.json, &text);
        Ok(ExitCode::SUCCESS)
    }

    async fn submit(
        &self,
        args: &SubmitArgs,
        requests: requests::RequestFile,
    ) -> Result<ExitCode, CommandFailure> {
        let input_file = self.send(&args.file, requests.bytes).await?;
        let new = NewBatch {
            input_file: input_file.clone(),
            endpoint: requests.endpoint,
            window: args.window.clone(),
            metadata: args.metadata.clone(),
        };
        let batch = match self.client.create_batch(&new).await {
            Ok(batch) => batch,
            Err(error) => {
                // No batch would ever read the file. If the deletion fails too, the file is deleted when it expires.
                let _ = self.client.delete_file(&input_file).await;
                return Err(error.into());
            }
        };
        self.print(&batch.json, &format!("{}\n", batch.id));
        let path = requests::path_of(requests.endpoint);
        output::note(&format!("{} requests for {path}, within {}", requests.count, batch.window));
        if self.lent {
            output::note(
                "Its key is lent for hours, and what has not begun when it ends is refused: set HEADRACE_API_KEY for a batch that takes longer.",
            );
        }
        output::note(&format!("Wait for it: headrace batches wait {}", batch.id));
        Ok(ExitCode::SUCCESS)
    }

    /// Uploads a file and returns its id.
    async fn send(&self, path: &Path, bytes: u64) -> Result<String, CommandFailure> {
        let file = tokio::fs::File::open(path).await;
        let file =
            file.map_err(|error| CommandFailure::Other(format!("cannot read {}: {error}", path.display())))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let sent = Arc::new(AtomicU64::new(0));
        let mut progress = ProgressLine::new(&format!("sending {name}"));
        let upload = self.client.upload_requests(&name, file, bytes, Arc::clone(&sent));
        tokio::pin!(upload);
        let id = loop {
            tokio::select! {
                id = &mut upload => break id,
                () = tokio::time::sleep(SENDING) => progress.bytes(sent.load(Ordering::Relaxed), bytes),
            }
        };
        progress.end();
        Ok(id?)
    }

    /// Waits until a batch has ended, the timeout is over, or Ctrl-C.
    async fn wait(&self, id: &str, timeout: Option<Duration>) -> Result<ExitCode, CommandFailure> {
        let mut progress = ProgressLine::new(id);
        let watched = tokio::select! {
            biased;
            () = headrace_terminal::interruption::interrupted() => None,
            watched = self.watch(id, timeout, &mut progress) => Some(watched),
        };
        progress.end();
        let still_runs = || {
            format!(
                "The batch still runs. Wait again: headrace batches wait {id}. End it: headrace batches cancel {id}"
            )
        };
        let Some(watched) = watched else {
            output::note(&still_runs());
            return Ok(ExitCode::from(INTERRUPTED));
        };
        let batch = watched?;
        if !batch.is_over() {
            output::note(&still_runs());
            let why = format!(
                "{id} is {} after the time that was to be waited: {}",
                batch.status,
                view::counts(&batch)
            );
            return Err(CommandFailure::Other(why));
        }
        let text = format!("{id} is {}: {}\n{}", batch.status, view::counts(&batch), view::faults(&batch));
        self.print(&batch.json, &text);
        if batch.output_file.is_some() {
            output::note(&format!("Its answers: headrace batches results {id}"));
        }
        if batch.error_file.is_some() {
            output::note(&format!("What failed: headrace batches results {id} --errors"));
        }
        Ok(if batch.status == "completed" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Returns the batch once it has ended or the timeout is over.
    async fn watch(
        &self,
        id: &str,
        timeout: Option<Duration>,
        progress: &mut ProgressLine,
    ) -> Result<Batch, ClientError> {
        let began = Instant::now();
        let (mut pause, most) = LOOKS;
        loop {
            let batch = self.client.batch(id).await?;
            let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
            if batch.is_over() || left.is_some_and(|left| left.is_zero()) {
                return Ok(batch);
            }
            progress.requests(view::ended(&batch), batch.counts.total);
            tokio::time::sleep(left.unwrap_or(pause).min(pause)).await;
            pause = pause.saturating_mul(2).min(most);
        }
    }

    async fn results(&self, id: &str, errors: bool, to: Option<&Path>) -> Result<ExitCode, CommandFailure> {
        let batch = self.client.batch(id).await?;
        let (file, other, flag) = match errors {
            false => (&batch.output_file, &batch.error_file, " --errors"),
            true => (&batch.error_file, &batch.output_file, ""),
        };
        let Some(file) = file else {
            return Err(CommandFailure::Other(match (batch.is_over(), other.is_some()) {
                (false, _) => format!(
                    "{id} is {} ({}): its results are there when it has ended\n  try: headrace batches wait {id}",
                    batch.status,
                    view::counts(&batch)
                ),
                (true, true) if errors => {
                    format!("none of its requests failed\n  try: headrace batches results {id}")
                }
                (true, true) => format!(
                    "none of its requests was answered ({})\n  try: headrace batches results {id}{flag}",
                    view::counts(&batch)
                ),
                (true, false) => format!(
                    "{id} is {}, and has no results: {}\n{}",
                    batch.status,
                    view::counts(&batch),
                    view::faults(&batch)
                ),
            }));
        };
        let content = self.client.file_content(file).await?;
        match to {
            Some(path) => keep(content, path).await,
            None => print(content).await,
        }
    }
}

/// Writes a file to standard output. Stops without an error if the reader is gone. A terminal gets control characters
/// escaped; a file or a pipe gets the bytes unchanged.
async fn print(mut content: FileContent) -> Result<ExitCode, CommandFailure> {
    let (is_terminal, mut kept) = (std::io::stdout().is_terminal(), Vec::new());
    while let Some(bytes) = content.next().await? {
        if is_terminal {
            kept.extend_from_slice(&bytes);
            // A character that is cut off waits for the rest of its bytes.
            let whole = std::str::from_utf8(&kept)
                .map_or_else(|error| error.error_len().map_or(error.valid_up_to(), |_| kept.len()), str::len);
            let text: Vec<u8> = kept.drain(..whole).collect();
            output::say(&String::from_utf8_lossy(&text));
            continue;
        }
        let mut out = std::io::stdout().lock();
        if out.write_all(&bytes).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes to a new file. If the download breaks off, the file is removed.
async fn keep(mut content: FileContent, path: &Path) -> Result<ExitCode, CommandFailure> {
    let cannot =
        |error: std::io::Error| CommandFailure::Other(format!("cannot write {}: {error}", path.display()));
    let mut file = OpenOptions::new().create_new(true).write(true).open(path).map_err(cannot)?;
    let mut written = 0_usize;
    let whole = async {
        while let Some(bytes) = content.next().await? {
            file.write_all(&bytes).map_err(cannot)?;
            written = written.saturating_add(bytes.len());
        }
        Ok(ExitCode::SUCCESS)
    }
    .await;
    match &whole {
        Ok(_) => output::note(&format!("{written} bytes in {}", path.display())),
        // The error is reported; a partial file is of no use.
        Err(_) => drop(std::fs::remove_file(path)),
    }
    whole
}
