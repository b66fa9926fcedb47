//! Reads the items of tools that run on a server: MCP, file search, code interpreter and web search. Each becomes the call
//! that the model made and the result that it got, so that a history reads as it was written. Knows no messages.

use std::borrow::Cow;

use headrace_domain::{Code, ToolCall};
use serde_json::{Map, Value, json};

use crate::common::names::mcp_tool_name;
use crate::common::params::label;
use crate::common::tools::arguments_text;
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The result of a call whose item does not hold it.
const NOT_KEPT: &str = "The result of this call was not kept.";
/// The result of a call that ended without one.
const NOT_COMPLETED: &str = "This call did not complete.";
/// The result of a call that was approved, before it runs.
const APPROVED: &str = "The call was approved. It has not run yet.";
/// The result of a call that was not approved. The reason follows.
const DENIED: &str = "The call was not approved and did not run.";
/// Replaces a picture among the outputs of code.
const PICTURE: &str = "[image]";

/// The types of items of tools that run on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostedKind {
    McpListing,
    McpCall,
    ApprovalRequest,
    ApprovalResponse,
    FileSearch,
    Code,
    WebSearch,
}

/// What an item means for the conversation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HostedItem {
    /// Nothing that the model reads.
    Nothing,
    /// A call without a result yet.
    Call(ToolCall),
    /// A call with its result. If it was approved first, `request` is the id of the call in the request for that.
    Answered { call: ToolCall, result: String, request: Option<String> },
    /// The result of an earlier call.
    Result { call_id: String, result: String },
}

/// The fields of an item of any type.
#[derive(Default)]
struct HostedDraft {
    id: Option<String>,
    server_label: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<String>,
    error: Option<String>,
    status: Option<String>,
    request: Option<String>,
    approve: Option<bool>,
    reason: Option<String>,
    has_tools: bool,
    queries: Option<Vec<String>>,
    results: Option<String>,
    code: Option<String>,
    action: Option<SearchAction>,
}

/// What a web search did: the arguments of the call, and the addresses that it found.
struct SearchAction {
    arguments: Map<String, Value>,
    sources: Option<String>,
}

impl HostedKind {
    /// Returns the kind of an item. `None` for items of other tools.
    pub(super) fn of(kind: &str) -> Option<Self> {
        Some(match kind {
            "mcp_list_tools" => Self::McpListing,
            "mcp_call" => Self::McpCall,
            "mcp_approval_request" => Self::ApprovalRequest,
            "mcp_approval_response" => Self::ApprovalResponse,
            "file_search_call" => Self::FileSearch,
            "code_interpreter_call" => Self::Code,
            "web_search_call" => Self::WebSearch,
            _ => return None,
        })
    }

    const fn is_of_mcp(self) -> bool {
        matches!(self, Self::McpListing | Self::McpCall | Self::ApprovalRequest)
    }

    const fn has_call(self) -> bool {
        matches!(self, Self::McpCall | Self::ApprovalRequest)
    }
}

impl HostedItem {
    /// Reads an item of this kind.
    pub(super) fn read(r: &mut JsonReader<'_>, kind: HostedKind, limits: &WireLimits) -> Read<Self> {
        let mut draft = HostedDraft::default();
        r.object(|r, key| draft.take(key.as_ref(), kind, r, limits))?;
        draft.finish(kind)
    }
}

impl HostedDraft {
    fn take(&mut self, key: &str, kind: HostedKind, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
        use HostedKind::{ApprovalResponse, Code as Interpreter, FileSearch, McpCall, McpListing, WebSearch};
        match (key, kind) {
            ("type", _) => r.skip()?,
            ("id", _) => self.id = r.optional(|r| label(r, limits))?,
            ("status", _) => self.status = r.optional(|r| label(r, limits))?,
            ("phase" | "created_by", _) => drop(r.optional(|r| label(r, limits))?),
            ("server_label", kind) if kind.is_of_mcp() => self.server_label = Some(label(r, limits)?),
            ("name", kind) if kind.has_call() => self.name = Some(label(r, limits)?),
            ("arguments", kind) if kind.has_call() => self.arguments = Some(arguments_text(r)?),
            ("tools", McpListing) => {
                self.has_tools = true;
                r.array(limits.max_tools, |r, _| listed_tool(r, limits))?;
            }
            ("output", McpCall) => self.output = r.optional(string)?,
            ("error", McpCall | McpListing) => self.error = r.optional(|r| error_text(r, limits))?,
            ("approval_request_id", McpCall | ApprovalResponse) => {
                self.request = r.optional(|r| label(r, limits))?;
            }
            ("approve", ApprovalResponse) => self.approve = Some(r.bool()?),
            ("reason", ApprovalResponse) => self.reason = r.optional(string)?,
            ("queries", FileSearch) => self.queries = Some(strings(r, limits)?),
            ("results", FileSearch) => self.results = r.optional(|r| found_texts(r, limits))?,
            ("code", Interpreter) => self.code = r.optional(string)?,
            ("container_id", Interpreter) => drop(r.optional(|r| label(r, limits))?),
            ("outputs", Interpreter) => self.output = r.optional(|r| code_outputs(r, limits))?,
            ("action", WebSearch) => self.action = r.optional(|r| SearchAction::read(r, limits))?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    }

    fn finish(self, kind: HostedKind) -> Read<HostedItem> {
        let missing = |key: &'static str| move || FieldFault::missing(key);
        let is_over = self.status.as_deref().is_none_or(|status| status == "completed");
        let without = if is_over { NOT_KEPT } else { NOT_COMPLETED };
        let (name, arguments, result) = match kind {
            HostedKind::McpListing => {
                self.server_label.ok_or_else(missing("server_label"))?;
                return if self.has_tools {
                    Ok(HostedItem::Nothing)
                } else {
                    Err(FieldFault::missing("tools"))
                };
            }
            HostedKind::ApprovalResponse => {
                let call_id = self.request.ok_or_else(missing("approval_request_id"))?;
                let result = match (self.approve.ok_or_else(missing("approve"))?, self.reason) {
                    (true, _) => APPROVED.to_owned(),
                    (false, Some(reason)) if !reason.trim().is_empty() => format!("{DENIED} {reason}"),
                    (false, _) => DENIED.to_owned(),
                };
                return Ok(HostedItem::Result { call_id, result });
            }
            HostedKind::McpCall | HostedKind::ApprovalRequest => {
                let label = self.server_label.ok_or_else(missing("server_label"))?;
                let name = mcp_tool_name(&label, &self.name.ok_or_else(missing("name"))?);
                let result = match (self.output, self.error) {
                    (Some(output), None) => Some(output),
                    (Some(output), Some(error)) if !output.is_empty() => Some(format!("{output}\n{error}")),
                    (_, Some(error)) => Some(error),
                    (None, None) => None,
                };
                (name, self.arguments.ok_or_else(missing("arguments"))?, result)
            }
            HostedKind::FileSearch => {
                let queries = self.queries.ok_or_else(missing("queries"))?;
                ("file_search".to_owned(), json!({ "queries": queries }).to_string(), self.results)
            }
            HostedKind::Code => {
                let code = self.code.unwrap_or_default();
                ("code_interpreter".to_owned(), json!({ "code": code }).to_string(), self.output)
            }
            HostedKind::WebSearch => {
                let SearchAction { arguments, sources } = self.action.ok_or_else(missing("action"))?;
                ("web_search".to_owned(), Value::Object(arguments).to_string(), sources)
            }
        };
        let call = ToolCall { id: self.id.ok_or_else(missing("id"))?, name, arguments };
        if kind == HostedKind::ApprovalRequest {
            return Ok(HostedItem::Call(call));
        }
        let result = result.unwrap_or_else(|| without.to_owned());
        Ok(HostedItem::Answered { call, result, request: self.request })
    }
}

impl SearchAction {
    fn read(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Self> {
        let (mut arguments, mut sources) = (Map::new(), None);
        r.object(|r, key| {
            match key.as_ref() {
                "sources" => sources = r.optional(|r| addresses(r, limits))?,
                "queries" => {
                    if let Some(queries) = r.optional(|r| strings(r, limits))? {
                        arguments.insert("queries".to_owned(), json!(queries));
                    }
                }
                key @ ("type" | "query" | "url" | "pattern") => {
                    if let Some(text) = r.optional(string)? {
                        arguments.insert(key.to_owned(), Value::String(text));
                    }
                }
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        if !arguments.contains_key("type") {
            return Err(FieldFault::missing("type"));
        }
        Ok(Self { arguments, sources })
    }
}

fn string(r: &mut JsonReader<'_>) -> Read<String> {
    r.string().map(Cow::into_owned)
}

fn strings(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<String>> {
    let mut all = Vec::new();
    r.array(limits.max_content_parts, |r, _| {
        all.push(string(r)?);
        Ok(())
    })?;
    Ok(all)
}

/// Checks a tool of a listing, which needs a name.
fn listed_tool(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
    let mut has_name = false;
    r.object(|r, key| {
        if key.as_ref() != "name" {
            return r.skip();
        }
        has_name = true;
        label(r, limits).map(drop)
    })?;
    if has_name { Ok(()) } else { Err(FieldFault::missing("name")) }
}

/// Reads an error: a text, or an object with a `message` or a `content`.
fn error_text(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<String> {
    match r.kind()? {
        ValueKind::String => string(r),
        ValueKind::Object => {
            let (mut message, mut content) = (None, None);
            r.object(|r, key| {
                match key.as_ref() {
                    "message" => message = r.optional(string)?,
                    "content" => content = r.optional(|r| texts_of(r, limits, "text"))?,
                    _ => r.skip()?,
                }
                Ok(())
            })?;
            Ok(message.or(content).unwrap_or_else(|| NOT_COMPLETED.to_owned()))
        }
        _ => Err(FieldFault::new(Code::InvalidType, "it must be a string or an object")),
    }
}

/// Reads a text, or the texts at `key` of a list of objects, each on lines of its own.
fn texts_of(r: &mut JsonReader<'_>, limits: &WireLimits, key: &str) -> Read<String> {
    if r.kind()? == ValueKind::String {
        return string(r);
    }
    let mut lines = Vec::new();
    r.array(limits.max_content_parts, |r, _| {
        r.object(|r, name| {
            if name.as_ref() == key {
                lines.extend(r.optional(string)?);
                return Ok(());
            }
            r.skip()
        })
    })?;
    Ok(lines.join("\n"))
}

fn addresses(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<String> {
    texts_of(r, limits, "url")
}

/// Reads the chunks that a search of files found, each under the name of its file.
fn found_texts(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<String> {
    let mut found = String::new();
    r.array(limits.max_content_parts, |r, _| {
        let (mut name, mut text) = (None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "filename" => name = r.optional(string)?,
                "text" => text = r.optional(string)?,
                "file_id" | "score" | "attributes" => r.skip()?,
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        for part in [name.map(|name| format!("[{name}]")), text].into_iter().flatten() {
            if !found.is_empty() {
                found.push('\n');
            }
            found.push_str(&part);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Reads what code printed, in order.
fn code_outputs(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<String> {
    let mut outputs = Vec::new();
    r.array(limits.max_content_parts, |r, _| {
        let (mut kind, mut logs) = (None, None);
        r.object(|r, key| {
            match key.as_ref() {
                "type" => kind = Some(string(r)?),
                "logs" => logs = Some(string(r)?),
                "url" => r.skip()?,
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        outputs.push(match kind.as_deref() {
            Some("logs") => logs.ok_or_else(|| FieldFault::missing("logs"))?,
            Some("image") => PICTURE.to_owned(),
            Some(_) => {
                return Err(FieldFault::at("type", Code::InvalidValue, "it must be `logs` or `image`"));
            }
            None => return Err(FieldFault::missing("type")),
        });
        Ok(())
    })?;
    Ok(outputs.join("\n"))
}
