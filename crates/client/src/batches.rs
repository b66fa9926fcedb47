//! Request files and batches in OpenAI's API: upload, create, read, cancel and download. Must not know what the
//! requests ask for.
//!
//! Source: <https://platform.openai.com/docs/api-reference/batch>.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use headrace_wire::openai::batch_path;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Response};
use serde_json::{Map, Value, json};

use crate::client::{plain_id, read_json};
use crate::error::causes;
use crate::form::FileForm;
use crate::{Client, ClientError};

/// A batch as a server describes it. Missing fields are empty or zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// The batch's id.
    pub id: String,
    /// The status: `validating`, `in_progress`, `finalizing`, `cancelling`, or a final one.
    pub status: String,
    /// The path that the batch's requests call.
    pub endpoint: String,
    /// The file with the requests.
    pub input_file: Option<String>,
    /// The file of the answers.
    pub output_file: Option<String>,
    /// The file of the failed requests.
    pub error_file: Option<String>,
    /// The completion window, as requested.
    pub window: String,
    /// Number of requests: all, completed and failed.
    pub counts: BatchCounts,
    /// Why the batch was not started.
    pub faults: Vec<BatchFault>,
    /// The server's complete JSON.
    pub json: Value,
}

/// Numbers of requests in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchCounts {
    /// All requests. 0 until the file is read.
    pub total: u64,
    /// Requests that were answered.
    pub completed: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// An error in a batch's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchFault {
    /// The line number, from 1.
    pub line: Option<u64>,
    /// The error message.
    pub message: String,
}

/// A page of batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPage {
    /// The batches, newest first.
    pub batches: Vec<Batch>,
    /// Whether more batches follow.
    pub has_more: bool,
}

impl Batch {
    /// Reads a batch. `None` if the JSON has no id.
    fn from_value(json: Value) -> Option<Self> {
        let text = |name: &str| json.get(name).and_then(Value::as_str).map(str::to_owned);
        let count = |name: &str| json.pointer(&format!("/request_counts/{name}")).and_then(Value::as_u64);
        let faults = json.pointer("/errors/data").and_then(Value::as_array);
        let fault = |fault: &Value| BatchFault {
            line: fault.get("line").and_then(Value::as_u64),
            message: fault.get("message").and_then(Value::as_str).unwrap_or_default().to_owned(),
        };
        Some(Self {
            id: text("id")?,
            status: text("status").unwrap_or_default(),
            endpoint: text("endpoint").unwrap_or_default(),
            input_file: text("input_file_id"),
            output_file: text("output_file_id"),
            error_file: text("error_file_id"),
            window: text("completion_window").unwrap_or_default(),
            counts: BatchCounts {
                total: count("total").unwrap_or_default(),
                completed: count("completed").unwrap_or_default(),
                failed: count("failed").unwrap_or_default(),
            },
            faults: faults.map(|faults| faults.iter().map(fault).collect()).unwrap_or_default(),
            json,
        })
    }

    /// Returns `true` if the status is final.
    pub fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "expired" | "cancelled")
    }

    /// The time of an event in seconds since 1970, by its field's name.
    pub fn seconds(&self, field: &str) -> Option<u64> {
        self.json.get(field).and_then(Value::as_u64)
    }
}

/// The parameters of a new batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBatch {
    /// The id of the file with the requests.
    pub input_file: String,
    /// The endpoint that the requests call.
    pub endpoint: headrace_domain::Endpoint,
    /// The completion window: `24h` or less.
    pub window: String,
    /// Labels of the batch, as names and values.
    pub metadata: Vec<(String, String)>,
}

/// A file's bytes, as they arrive.
#[derive(Debug)]
pub struct FileContent(Response);

impl FileContent {
    /// The next piece of the file, or `None` at its end.
    ///
    /// # Errors
    /// [`ClientError::CutOff`] if the connection breaks first.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let cut =
            |error: reqwest::Error| ClientError::CutOff { request_id: None, cause: Some(causes(&error)) };
        self.0.chunk().await.map_err(cut)
    }
}

impl Client {
    /// Uploads a request file in pieces and returns the file's id. `sent` counts the bytes that the transport has
    /// taken. The upload is not retried: after a failure it is unknown whether the server has the file.
    ///
    /// # Errors
    /// Any failure, including a file that is shorter than `bytes`.
    pub async fn upload_requests(
        &self,
        name: &str,
        file: tokio::fs::File,
        bytes: u64,
        sent: Arc<AtomicU64>,
    ) -> Result<String, ClientError> {
        let form = FileForm::new(name, file, bytes, sent)
            .ok_or_else(|| ClientError::Config("this machine gives no random numbers".to_owned()))?;
        let request = self.request(Method::POST, "v1/files")?.header(CONTENT_TYPE, form.content_type());
        let response = self.send_once(request.body(reqwest::Body::wrap(form))).await?;
        let json: Value = self.read_value(response, "the file").await?;
        let id = json.get("id").and_then(Value::as_str).map(str::to_owned);
        id.ok_or_else(|| ClientError::Protocol("the file has no id".to_owned()))
    }

    /// Creates a batch. Not retried, since a second attempt could create a second batch.
    ///
    /// # Errors
    /// Any failure, or a response that is not a batch.
    pub async fn create_batch(&self, new: &NewBatch) -> Result<Batch, ClientError> {
        let mut body = json!({"input_file_id": new.input_file, "endpoint": batch_path(new.endpoint),
            "completion_window": new.window});
        if let (Some(fields), false) = (body.as_object_mut(), new.metadata.is_empty()) {
            let pairs = new.metadata.iter().map(|(name, value)| (name.clone(), json!(value)));
            fields.insert("metadata".to_owned(), Value::Object(pairs.collect::<Map<_, _>>()));
        }
        let request = self.request(Method::POST, "v1/batches")?.header(CONTENT_TYPE, "application/json");
        let response = self.send_once(request.body(body.to_string())).await?;
        is_batch(self.read_value(response, "the batch").await?)
    }

    /// A page of the project's batches: those after `after`, or the newest.
    ///
    /// # Errors
    /// The last attempt's failure, or a response that is not such a page.
    pub async fn batches(&self, limit: u32, after: Option<&str>) -> Result<BatchPage, ClientError> {
        let after = after.map(|id| plain_id(id, "batch").map(|id| format!("&after={id}"))).transpose()?;
        let path = format!("v1/batches?limit={limit}{}", after.unwrap_or_default());
        let json: Value = read_json(&self.get(&path).await?, "the list of batches")?;
        let Some(data) = json.get("data").and_then(Value::as_array) else {
            return Err(ClientError::Protocol("the list of batches has no `data`".to_owned()));
        };
        let batches = data.iter().cloned().filter_map(Batch::from_value).collect();
        Ok(BatchPage { batches, has_more: json.get("has_more").and_then(Value::as_bool).unwrap_or_default() })
    }

    /// The batch with this id.
    ///
    /// # Errors
    /// The last attempt's failure. Status 404 if the key's project has no such batch.
    pub async fn batch(&self, id: &str) -> Result<Batch, ClientError> {
        let body = self.get(&format!("v1/batches/{}", plain_id(id, "batch")?)).await?;
        is_batch(read_json(&body, "the batch")?)
    }

    /// Cancels a batch, so that no further request starts. Returns the batch.
    ///
    /// # Errors
    /// The last attempt's failure. The server refuses to cancel a batch that has ended.
    pub async fn cancel_batch(&self, id: &str) -> Result<Batch, ClientError> {
        let path = format!("v1/batches/{}/cancel", plain_id(id, "batch")?);
        let answered = self.send(Method::POST, &path, None, None).await?;
        is_batch(self.read_value(answered.response, "the batch").await?)
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// The last attempt's failure.
    pub async fn delete_file(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("v1/files/{}", plain_id(id, "file")?);
        self.send(Method::DELETE, &path, None, None).await.map(drop)
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// The last attempt's failure.
    pub async fn file_content(&self, id: &str) -> Result<FileContent, ClientError> {
        let path = format!("v1/files/{}/content", plain_id(id, "file")?);
        Ok(FileContent(self.send(Method::GET, &path, None, None).await?.response))
    }
}

fn is_batch(json: Value) -> Result<Batch, ClientError> {
    Batch::from_value(json).ok_or_else(|| ClientError::Protocol("the batch has no id".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_as_openai_tells_of_it() {
        let json = json!({"id": "batch_1", "object": "batch", "status": "failed", "endpoint": "/v1/responses",
            "completion_window": "24h", "input_file_id": "file-1", "output_file_id": null, "created_at": 7,
            "request_counts": {"total": 3, "completed": 1, "failed": 2},
            "errors": {"object": "list", "data": [{"line": 2, "message": "no"}, {"line": null, "message": "all"}]}});
        let batch = Batch::from_value(json).unwrap();
        assert!(batch.is_over());
        assert_eq!(batch.counts, BatchCounts { total: 3, completed: 1, failed: 2 });
        assert_eq!(batch.faults.iter().map(|fault| fault.line).collect::<Vec<_>>(), [Some(2), None]);
        assert_eq!((batch.output_file.clone(), batch.seconds("created_at")), (None, Some(7)));
        assert_eq!(Batch::from_value(json!({"id": "b"})).unwrap().counts, BatchCounts::default());
        assert_eq!(Batch::from_value(json!({"object": "batch"})), None);
    }
}
