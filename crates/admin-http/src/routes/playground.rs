//! Calls that an operator makes as a project, each once under its idempotency key.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, NoContent, Response};
use headrace_domain::{AdminCode, ProjectId};
use headrace_identity::ProjectRecord;

use crate::app::AdminApp;
use crate::input::{is_json, read};
use crate::org_scope::is_within;
use crate::plays::{PlayEntry, StoredCall};
use crate::problem::ApiProblem;
use crate::seams::PlaygroundEndpoint;
use crate::who::AuthenticatedOperator;

/// The act of a call in the audit log.
const CALL: &str = "playground.call";
/// The header that names the project which pays.
const PROJECT: &str = "x-headrace-project";
/// The header with the idempotency key of a call.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The response header that marks a replayed answer.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Maximum length of an idempotency key, in bytes.
const MAX_KEY_BYTES: usize = 255;
/// Maximum size of a call's body, in bytes. It may contain images.
const MAX_CALL_BYTES: usize = 8 * 1024 * 1024;
/// Interval between checks whether the call's operator was revoked.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_secs(1);

pub(crate) async fn chat(
    app: State<AdminApp>,
    who: Extension<AuthenticatedOperator>,
    request: Request,
) -> Result<Response, ApiProblem> {
    call(app, who, request, PlaygroundEndpoint::Chat).await
}

pub(crate) async fn responses(
    app: State<AdminApp>,
    who: Extension<AuthenticatedOperator>,
    request: Request,
) -> Result<Response, ApiProblem> {
    call(app, who, request, PlaygroundEndpoint::Responses).await
}

pub(crate) async fn messages(
    app: State<AdminApp>,
    who: Extension<AuthenticatedOperator>,
    request: Request,
) -> Result<Response, ApiProblem> {
    call(app, who, request, PlaygroundEndpoint::Messages).await
}

pub(crate) async fn tokenize(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    request: Request,
) -> Result<Response, ApiProblem> {
    let project = project(&app, &who, request.headers())?;
    let body = body(request).await?;
    // Tokenizing is free and changes nothing, so it needs no idempotency key.
    let played = app.play(&who, project, PlaygroundEndpoint::Tokenize, body).await;
    let (status, headers) = head(played.status, played.content_type, &played.headers, false);
    Ok((status, headers, HttpBody::from_stream(played.body)).into_response())
}

/// Stops a running call. Its answer ends there, and it is charged like a call whose client disconnected.
pub(crate) async fn stop(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    headers: HeaderMap,
) -> Result<NoContent, ApiProblem> {
    let key = idempotency_key(&headers)?;
    if app.plays().stop(&(who.operator.id, key)) {
        return Ok(NoContent);
    }
    Err(ApiProblem::not_found("there is no such call"))
}

async fn call(
    State(app): State<AdminApp>,
    Extension(who): Extension<AuthenticatedOperator>,
    request: Request,
    ask: PlaygroundEndpoint,
) -> Result<Response, ApiProblem> {
    let project = project(&app, &who, request.headers())?;
    let key = idempotency_key(request.headers())?;
    let body = body(request).await?;
    let mut asked = blake3::Hasher::new();
    for part in [ask.name().as_bytes(), b"\n", project.id.as_str().as_bytes(), b"\n", &body] {
        asked.update(part);
    }
    let (play, again) =
        match app.plays().enter((who.operator.id.clone(), key.clone()), asked.finalize(), app.now()) {
            PlayEntry::Again(play) => (play, true),
            PlayEntry::New(play) => {
                let (app, who, made) = (app.clone(), who.clone(), Arc::clone(&play));
                // A separate task, so that a reloaded page finds the call still running.
                tokio::spawn(async move {
                    let detail = format!("{}, as project {}", ask.name(), project.id);
                    let noted = match app.was_noted(&who, CALL, &key).await {
                        Ok(true) => Err(begun_before()),
                        Ok(false) => app.note(&who, CALL, key, detail).await,
                        Err(problem) => Err(problem),
                    };
                    let played = async {
                        match noted {
                            Ok(()) => app.play(&who, project, ask, body).await,
                            Err(problem) => problem.played(),
                        }
                    };
                    let mut taking = std::pin::pin!(Arc::clone(&made).take_in(played));
                    let mut looks = tokio::time::interval(LOOK_EVERY);
                    loop {
                        tokio::select! {
                            () = &mut taking => return,
                            _ = looks.tick() => if !app.is_active(&who) {
                                made.stop();
                            }
                        }
                    }
                });
                (play, false)
            }
            PlayEntry::OtherBody => {
                let message =
                    "another call was made under this `Idempotency-Key`: a new call needs a new one";
                return Err(
                    ApiProblem::new(AdminCode::IdempotencyKeyReused, message).at(Some(IDEMPOTENCY_KEY))
                );
            }
            PlayEntry::Full => {
                let message =
                    "too many calls of the playground are being made: stop one, or wait until one is over";
                return Err(ApiProblem::new(AdminCode::TooManyCalls, message).retry_after(5));
            }
        };
    answer(&play, again).await
}

/// The error for a key whose call was begun before but whose answer is gone. Answers are kept in memory for an hour.
/// The audit log keeps the fact that the call was begun.
fn begun_before() -> ApiProblem {
    let message = "a call was begun under this `Idempotency-Key` before, and its answer is not kept any longer: it is not made twice";
    ApiProblem::new(AdminCode::BegunBefore, message)
        .at(Some(IDEMPOTENCY_KEY))
        .remedy("Requests shows its outcome. Sent again it is a new call, with a key of its own.")
}

async fn answer(play: &Arc<StoredCall>, again: bool) -> Result<Response, ApiProblem> {
    // Subscribed before the head arrives, so that the call counts as read.
    let reading = play.read();
    let Some(known) = play.head().await else {
        let message =
            "the call ended before its answer began: an operator stopped it, or its answer broke off";
        return Err(ApiProblem::new(AdminCode::Stopped, message).remedy(
            "send a new `Idempotency-Key` to ask once more; `GET /admin/v1/requests` shows what the ended call used",
        ));
    };
    let (status, headers) = head(known.status, known.content_type, &known.headers, again);
    Ok((status, headers, HttpBody::from_stream(reading)).into_response())
}

fn head(
    status: u16,
    content_type: &'static str,
    told: &[(&'static str, String)],
    again: bool,
) -> (StatusCode, HeaderMap) {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in told {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
        {
            headers.append(name, value);
        }
    }
    if again {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    (StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY), headers)
}

async fn body(request: Request) -> Result<bytes::Bytes, ApiProblem> {
    if !is_json(request.headers()) {
        let message = "the body must be JSON, with `content-type: application/json`";
        return Err(ApiProblem::form(None, message));
    }
    read(request, MAX_CALL_BYTES).await
}

fn project(
    app: &AdminApp,
    who: &AuthenticatedOperator,
    headers: &HeaderMap,
) -> Result<ProjectRecord, ApiProblem> {
    let missing =
        || ApiProblem::form(Some(PROJECT), format!("the header `{PROJECT}` names the project that pays"));
    let named = headers.get(PROJECT).and_then(|value| value.to_str().ok()).ok_or_else(missing)?;
    let id = ProjectId::new(named).map_err(|error| ApiProblem::form(Some(PROJECT), error.to_string()))?;
    let unknown = || ApiProblem::not_found(format!("there is no project `{id}`")).at(Some(PROJECT));
    let found = app.directory().project(&id).filter(|found| is_within(&who.operator, &found.org));
    found.ok_or_else(unknown)
}

fn idempotency_key(headers: &HeaderMap) -> Result<String, ApiProblem> {
    let key = headers.get(IDEMPOTENCY_KEY).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!(
            "a call needs the header `{IDEMPOTENCY_KEY}`, of 1 to {MAX_KEY_BYTES} visible characters: under one key it is made, and paid for, once"
        );
        return Err(ApiProblem::form(Some(IDEMPOTENCY_KEY), message));
    }
    Ok(key.to_owned())
}
