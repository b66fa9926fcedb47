//! Sign-in at an identity provider: the list of providers, the way to one, and the way back. Must not know how a token
//! is verified.

use std::net::IpAddr;

use aide::generate::GenContext;
use aide::openapi::{Operation, Response as Described};
use aide::operation::OperationOutput;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use headrace_domain::AdminCode;
use headrace_jwt::{ProviderUser, SignInError, SignInProvider};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::access::ROOT;
use crate::app::AdminApp;
use crate::guard;
use crate::input::{PathName, QueryInput};
use crate::listener::OnConnectionLine;
use crate::problem::{ApiProblem, ErrorBody};
use crate::provider_operator;
use crate::routes::ByName;
use crate::routes::session::cookie;
use crate::sign_in_cookie::{self, SignInCookie};
use crate::who::AuthenticatedOperator;

/// Longest `code` of a callback, in bytes.
const MAX_CODE_BYTES: usize = 4096;

/// The identity providers for operators.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ProviderList {
    /// The providers, in the order of the settings.
    data: Vec<ProviderRow>,
}

/// An identity provider for operators.
#[derive(Debug, Serialize, JsonSchema)]
struct ProviderRow {
    /// The name in addresses: `/admin/v1/sign-in/NAME` begins a sign-in.
    name: String,
    /// The name for people.
    label: String,
}

/// Lists the providers.
pub(crate) async fn list(State(app): State<AdminApp>) -> Json<ProviderList> {
    let row = |provider: &Arc<SignInProvider>| ProviderRow {
        name: provider.name().to_owned(),
        label: provider.label().to_owned(),
    };
    Json(ProviderList { data: app.sessions().providers().list().iter().map(row).collect() })
}

/// The parameters with which a provider leads a browser back (RFC 6749, 4.1.2; RFC 9207).
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct CallbackQuery {
    /// The code.
    code: Option<String>,
    /// The `state` of the beginning.
    state: Option<String>,
    /// The provider's error instead of a code.
    error: Option<String>,
    /// The provider's issuer.
    iss: Option<String>,
}

/// The answer to a browser: the next address, or an error.
pub(crate) enum SignInAnswer {
    /// Status 303, with cookies.
    Redirect { to: HeaderValue, cookies: Vec<HeaderValue> },
    /// An error, as a page for a browser and as JSON for a program.
    Refused { problem: ApiProblem, as_page: bool },
}

impl SignInAnswer {
    fn refused(problem: ApiProblem, headers: &HeaderMap) -> Self {
        let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        Self::Refused { problem, as_page: accepts.is_some_and(|accepts| accepts.contains("text/html")) }
    }
}

impl IntoResponse for SignInAnswer {
    fn into_response(self) -> Response {
        match self {
            Self::Redirect { to, cookies } => {
                let mut response = StatusCode::SEE_OTHER.into_response();
                response.headers_mut().insert(header::LOCATION, to);
                for cookie in cookies {
                    response.headers_mut().append(header::SET_COOKIE, cookie);
                }
                response
            }
            Self::Refused { problem, as_page: false } => problem.into_response(),
            Self::Refused { problem, as_page: true } => page(problem),
        }
    }
}

/// The error as a page without scripts and styles.
fn page(problem: ApiProblem) -> Response {
    let (message, remedy) = (escaped(&problem.error.message), escaped(&problem.error.remedy));
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Sign-in failed · Headrace</title>\
         <h1>Sign-in failed</h1><p>{message}</p><p>{remedy}</p>\
         <p><a href=\"/\">Back to the sign-in page</a></p></html>"
    );
    // The status and the headers of the error stay.
    let mut response = problem.into_response();
    *response.body_mut() = page.into();
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

impl OperationOutput for SignInAnswer {
    type Inner = ErrorBody;

    fn inferred_responses(ctx: &mut GenContext, operation: &mut Operation) -> Vec<(Option<u16>, Described)> {
        let description = "The header `location` has the next address.".to_owned();
        let next = (Some(303), Described { description, ..Described::default() });
        std::iter::once(next).chain(ApiProblem::inferred_responses(ctx, operation)).collect()
    }
}

/// Leads the browser to a provider.
pub(crate) async fn begin(
    State(app): State<AdminApp>,
    headers: HeaderMap,
    PathName(ByName { name }): PathName<ByName>,
) -> SignInAnswer {
    let begun = async {
        let provider = provider(&app, &name)?;
        let cookie = SignInCookie::create(app.now())?;
        let to = provider.authorization_url(&redirect_url(&app, &name), &cookie.secrets(&name)).await;
        let to = HeaderValue::try_from(to.map_err(problem)?);
        let to = to.map_err(|_| ApiProblem::internal("an address that is no header"))?;
        Ok(SignInAnswer::Redirect { to, cookies: vec![cookie.header(app.port(), app.url())?] })
    };
    begun.await.unwrap_or_else(|problem| SignInAnswer::refused(problem, &headers))
}

/// Signs in with the code that a provider gave the browser, and leads the browser to the console.
pub(crate) async fn end(
    State(app): State<AdminApp>,
    Extension(OnConnectionLine(line)): Extension<OnConnectionLine>,
    headers: HeaderMap,
    PathName(ByName { name }): PathName<ByName>,
    QueryInput(query): QueryInput<CallbackQuery>,
) -> SignInAnswer {
    let ended = async {
        let provider = provider(&app, &name)?;
        app.may_sign_in(line.peer)?;
        let signed_in = exchange(&app, &provider, &headers, &query).await;
        let user = signed_in.inspect_err(|_| {
            app.sign_in_failed(line.peer);
            tracing::warn!(peer = %line.peer, provider = name, "a sign-in of an operator failed");
        })?;
        open_session(&app, &provider, user, line.peer).await
    };
    ended.await.unwrap_or_else(|problem| SignInAnswer::refused(problem, &headers))
}

async fn exchange(
    app: &AdminApp,
    provider: &SignInProvider,
    headers: &HeaderMap,
    query: &CallbackQuery,
) -> Result<ProviderUser, ApiProblem> {
    let now = app.now();
    let cookie = guard::cookie(headers, &sign_in_cookie::name(app.port()));
    let secrets = cookie.and_then(|value| SignInCookie::read(value, now));
    let secrets = secrets.map(|cookie| cookie.secrets(provider.name()));
    let secrets = secrets.ok_or_else(|| {
        failed("this browser has not begun a sign-in within the last ten minutes, or has ended it already")
    })?;
    if !sign_in_cookie::is_state(&secrets, query.state.as_deref().unwrap_or_default()) {
        return Err(failed("the `state` is not the one of the sign-in that this browser began"));
    }
    if query.iss.as_deref().is_some_and(|issuer| issuer != provider.issuer()) {
        return Err(failed("another issuer than that of the provider has answered (`iss`)"));
    }
    if let Some(error) = &query.error {
        let error: String = error.chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
        return Err(failed(&format!("the identity provider refused the sign-in: {error}")));
    }
    let code = query.code.as_deref().filter(|code| (1..=MAX_CODE_BYTES).contains(&code.len()));
    let code = code.ok_or_else(|| failed("the provider's answer has no `code`"))?;
    provider.sign_in(code, &redirect_url(app, provider.name()), &secrets, now).await.map_err(problem)
}

async fn open_session(
    app: &AdminApp,
    provider: &SignInProvider,
    user: ProviderUser,
    peer: IpAddr,
) -> Result<SignInAnswer, ApiProblem> {
    if app.sessions().is_deprovisioned(&user) {
        let message = "the user was deactivated on this server, so it may not sign in";
        return Err(ApiProblem::new(AdminCode::SignInRefused, message)
            .remedy("activate the user at the identity provider, or with `headrace users activate ID`"));
    }
    let operator = provider_operator::record(&user);
    let operator = operator.ok_or_else(|| ApiProblem::internal("a user without an id"))?;
    let detail = format!(
        "by the identity provider {}, as {}, issuer {}, subject {}, from {peer}",
        user.provider, user.role, user.issuer, user.subject
    );
    let who = AuthenticatedOperator { operator, session: None, user: None };
    // Audited before the session exists, so that the audit log knows every session.
    app.note(&who, "operator.sign_in", who.operator.id.to_string(), detail).await?;
    let opened = app.sessions().begin_for_user((&who.operator, user), provider.session(), app.now());
    let (token, _) = opened.map_err(ApiProblem::from)?;
    // A session that is not stored ends with the process.
    let _ = app.store_sessions().await;
    let seconds = provider.session().min(crate::SESSION_LIFETIME).as_secs();
    let cookies = vec![
        cookie(app.cookie(), token.expose(), seconds, app.url())?,
        sign_in_cookie::deleted(app.port(), app.url())?,
    ];
    Ok(SignInAnswer::Redirect { to: HeaderValue::from_static("/"), cookies })
}

fn provider(app: &AdminApp, name: &str) -> Result<Arc<SignInProvider>, ApiProblem> {
    let unknown = || ApiProblem::new(AdminCode::UnknownProvider, "there is no such identity provider");
    app.sessions().providers().named(name).ok_or_else(unknown)
}

/// The address to which the provider leads browsers back. It is made of settings, never of a request's `Host`.
fn redirect_url(app: &AdminApp, name: &str) -> String {
    format!("{}{ROOT}/sign-in/{name}/callback", app.url())
}

fn failed(why: &str) -> ApiProblem {
    ApiProblem::new(AdminCode::SignInFailed, why).remedy("begin again on the sign-in page")
}

fn problem(error: SignInError) -> ApiProblem {
    let message = error.to_string();
    match error {
        SignInError::Unavailable { .. } => ApiProblem::new(AdminCode::ProviderUnavailable, message)
            .remedy("try again later, or sign in with a key or a link"),
        SignInError::Busy { retry_after } => {
            ApiProblem::new(AdminCode::ProviderUnavailable, message).retry_after(retry_after.as_secs())
        }
        SignInError::NotMapped { .. } => ApiProblem::new(AdminCode::SignInRefused, message)
            .remedy("a rule of `[[admin.sign_in]]` must match one of these claims"),
        SignInError::Code { .. } | SignInError::Token(_) | SignInError::Nonce | SignInError::OtherClient => {
            failed(&message)
        }
    }
}

/// The text with the characters of markup escaped.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}
