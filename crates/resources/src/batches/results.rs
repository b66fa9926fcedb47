//! The results of a batch: written into files once, or returned from the store. Knows the dialects' line formats, and
//! nothing of what an answer says.

use std::time::Duration;

use headrace_call_state::Rejection;
use headrace_domain::Endpoint;
use headrace_objects::{
    BatchRecord, BatchState, BatchStatus, FileDraft, FileRecord, LineEnd, LineResult, OUTPUT_PURPOSE,
};
use headrace_wire::one_line;
use serde_json::json;

use crate::draft_writer::DraftWriter;
use crate::runner::CallRunner;

use super::BatchJob;

/// Bytes of answers that are read from the store at once.
pub(crate) const READ_BYTES: u64 = 1 << 20;

impl<'a, R: CallRunner> BatchJob<'a, R> {
    /// Writes the result files and marks the batch as over.
    pub(super) async fn write_down(self) -> Result<Option<BatchRecord>, Rejection> {
        let Some(batch) = self.look_again().await? else { return Ok(None) };
        let is_of_messages = batch.state.endpoint == Endpoint::Messages;
        let (output, errors) = if is_of_messages { (None, None) } else { self.write_files(&batch).await? };
        let over = match (batch.state.status, batch.counts.expired) {
            (BatchStatus::Cancelling, _) => BatchStatus::Cancelled,
            (_, 1..) => BatchStatus::Expired,
            _ => BatchStatus::Completed,
        };
        let change = move |state: &mut BatchState, now| {
            (state.status, state.output, state.errors) = (over, output, errors);
            match over {
                BatchStatus::Cancelled => state.times.cancelled = Some(now),
                BatchStatus::Expired => state.times.expired = Some(now),
                _ => state.times.completed = Some(now),
            }
        };
        let over = self.resources.change_batch(&batch.id, change).await?;
        if !is_of_messages {
            // The files contain all results.
            let id = batch.id.clone();
            self.resources.objects().ask_files(move |store| store.forget_lines(&id)).await?;
        }
        Ok(over)
    }

    /// Writes the files of successful and of other results. `None` for a file that would be empty.
    async fn write_files(self, batch: &BatchRecord) -> Result<(Option<String>, Option<String>), Rejection> {
        let (mut output, mut errors, mut from) = (None, None, 0);
        loop {
            let id = batch.id.clone();
            let results =
                self.resources.objects().ask_files(move |store| store.results(&id, from, READ_BYTES)).await?;
            let Some(last) = results.last() else { break };
            from = last.at + 1;
            for result in &results {
                let is_good = result.end == LineEnd::Completed;
                let file = if is_good { &mut output } else { &mut errors };
                let writing = match file {
                    Some(writing) => writing,
                    None => file.insert(self.begin(batch, if is_good { "output" } else { "errors" }).await?),
                };
                writing.add(openai_line(&batch.id, result).as_bytes()).await?;
            }
        }
        Ok((finished(output).await?, finished(errors).await?))
    }

    /// Starts a result file. Removes one that an earlier attempt may have left.
    async fn begin(self, batch: &BatchRecord, what: &str) -> Result<DraftWriter<'a>, Rejection> {
        let created = self.resources.now();
        let digits = batch.id.rsplit('_').next().unwrap_or_default();
        let id = format!("file-{digits}{}", if what == "output" { "0" } else { "1" });
        let (project, left) = (batch.project.clone(), id.clone());
        self.resources.objects().ask_files(move |store| store.delete_file(&project, &left, created)).await?;
        let kept = batch.state.kept_seconds.map_or(self.resources.config().retention, Duration::from_secs);
        let draft = FileDraft::File(FileRecord {
            id,
            project: batch.project.clone(),
            created,
            expires: Some(created.after(kept)),
            bytes: 0,
            name: format!("{}_{what}.jsonl", batch.id),
            purpose: OUTPUT_PURPOSE.to_owned(),
        });
        DraftWriter::begin(self.resources, draft, false).await
    }
}

async fn finished(writing: Option<DraftWriter<'_>>) -> Result<Option<String>, Rejection> {
    let Some(writing) = writing else { return Ok(None) };
    Ok(writing.finish(|_| {}).await?.map(|draft| draft.id().to_owned()))
}

/// A line of an OpenAI result file.
fn openai_line(batch: &str, result: &LineResult) -> String {
    let digits = batch.rsplit('_').next().unwrap_or_default();
    let id = json!(format!("batch_req_{digits}{:06x}", result.at));
    let custom_id = json!(result.custom_id);
    let never = |code: &str, message: &str| {
        let error = json!({"code": code, "message": message});
        format!("{{\"id\":{id},\"custom_id\":{custom_id},\"response\":null,\"error\":{error}}}\n")
    };
    match result.end {
        LineEnd::Expired => {
            never("batch_expired", "This request could not be begun before the completion window expired.")
        }
        LineEnd::Cancelled => {
            never("batch_cancelled", "The batch was cancelled before this request was begun.")
        }
        LineEnd::Completed | LineEnd::Failed => {
            let (status, request, body) = (result.status, json!(result.request), one_line(&result.answer));
            format!(
                "{{\"id\":{id},\"custom_id\":{custom_id},\"response\":{{\"status_code\":{status},\"request_id\":{request},\
                 \"body\":{body}}},\"error\":null}}\n"
            )
        }
    }
}

/// A line of an Anthropic result stream.
pub(crate) fn anthropic_line(result: &LineResult) -> String {
    let custom_id = json!(result.custom_id);
    let line = match result.end {
        LineEnd::Completed => format!("{{\"type\":\"succeeded\",\"message\":{}}}", one_line(&result.answer)),
        LineEnd::Failed => format!("{{\"type\":\"errored\",\"error\":{}}}", one_line(&result.answer)),
        LineEnd::Cancelled => "{\"type\":\"canceled\"}".to_owned(),
        LineEnd::Expired => "{\"type\":\"expired\"}".to_owned(),
    };
    format!("{{\"custom_id\":{custom_id},\"result\":{line}}}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_line_is_one_line_of_json() {
        let result = |end, answer: &str| LineResult {
            at: 1,
            custom_id: "a\n\"b".to_owned(),
            end,
            status: 200,
            request: "req_1".to_owned(),
            answer: answer.to_owned(),
        };
        for end in [LineEnd::Completed, LineEnd::Failed, LineEnd::Cancelled, LineEnd::Expired] {
            let result = result(end, "{\n  \"text\": \"a\\nb\"\r\n}");
            for line in [openai_line("batch_7", &result), anthropic_line(&result)] {
                assert_eq!(line.matches('\n').count(), 1, "{line}");
                let line: Value = serde_json::from_str(&line).unwrap();
                assert_eq!(line["custom_id"], "a\n\"b");
            }
        }
        let line: Value =
            serde_json::from_str(&openai_line("batch_7", &result(LineEnd::Completed, "{\"x\":1}"))).unwrap();
        assert_eq!(line["response"], json!({"status_code": 200, "request_id": "req_1", "body": {"x": 1}}));
        assert_eq!(line["id"], "batch_req_7000001");
    }
}
