//! The requests of a sign-in to a provider: the code for tokens (RFC 6749, 4.1.3), and the claims about a user. The seam
//! between the sign-in and the network. Must not know what the tokens mean.

use std::fmt;

use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer};

use crate::documents::{DocumentError, DocumentFuture, DocumentSource};

/// Sends the requests of a sign-in to one provider.
pub trait ProviderClient: DocumentSource {
    /// Posts the form of a code to the token endpoint. Returns the answer of status 200, or of status 400 and 401, which
    /// say why the provider refused the code.
    fn exchange<'a>(&'a self, request: &'a CodeRequest) -> DocumentFuture<'a>;

    /// Fetches the claims about a user with an access token.
    fn user_info<'a>(&'a self, url: &'a str, access_token: &'a SecretString) -> DocumentFuture<'a>;
}

/// A request for the tokens of a code.
pub struct CodeRequest {
    /// The token endpoint.
    pub url: String,
    /// The form, encoded.
    pub form: SecretString,
    /// The client's id and secret for basic authentication, encoded. `None` if the form has them.
    pub basic: Option<(String, SecretString)>,
}

impl fmt::Debug for CodeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodeRequest").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The fields of a code's form.
pub(crate) struct CodeForm<'a> {
    pub(crate) code: &'a str,
    pub(crate) redirect_url: &'a str,
    pub(crate) verifier: &'a str,
    pub(crate) client_id: &'a str,
    pub(crate) client_secret: Option<&'a SecretString>,
    /// The methods of the token endpoint, by its discovery document.
    pub(crate) methods: Option<&'a [String]>,
}

impl CodeForm<'_> {
    /// Builds the request. A client with a secret authenticates by `client_secret_basic`, or by `client_secret_post` if
    /// the provider supports nothing else.
    pub(crate) fn request(&self, url: &str) -> CodeRequest {
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", self.code),
            ("redirect_uri", self.redirect_url),
            ("code_verifier", self.verifier),
        ];
        let supports = |name: &str| self.methods.is_some_and(|methods| methods.iter().any(|m| m == name));
        let takes_basic = self.methods.is_none() || supports("client_secret_basic");
        let basic = match self.client_secret {
            Some(secret) if takes_basic || !supports("client_secret_post") => {
                // Both are encoded as in a form before they are joined (RFC 6749, 2.3.1).
                Some((encoded(self.client_id), encoded(secret.expose_secret()).into()))
            }
            Some(secret) => {
                fields.extend([("client_id", self.client_id), ("client_secret", secret.expose_secret())]);
                None
            }
            None => {
                fields.push(("client_id", self.client_id));
                None
            }
        };
        CodeRequest { url: url.to_owned(), form: form(&fields).into(), basic }
    }
}

/// The answer of a token endpoint.
#[derive(Deserialize)]
pub(crate) struct CodeAnswer {
    pub(crate) id_token: Option<String>,
    #[serde(default, deserialize_with = "secret")]
    pub(crate) access_token: Option<SecretString>,
    error: Option<String>,
}

impl CodeAnswer {
    /// Parses an answer.
    ///
    /// # Errors
    /// The answer is no JSON object, or the provider's error.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, DocumentError> {
        let answer: Self = serde_json::from_slice(body)
            .map_err(|_| DocumentError { why: "the answer of the token endpoint is no JSON".to_owned() })?;
        match &answer.error {
            None => Ok(answer),
            Some(error) => {
                Err(DocumentError { why: format!("the provider refused the code: {}", fit(error)) })
            }
        }
    }
}

fn secret<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(SecretString::from))
}

/// An error name of a provider, as far as RFC 6749 allows its characters, and at most 64 bytes.
pub(crate) fn fit(error: &str) -> String {
    let is_fit = |c: &char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '<' | '>' | '&');
    error.chars().filter(is_fit).take(64).collect()
}

/// Encodes fields as `application/x-www-form-urlencoded`.
pub(crate) fn form(fields: &[(&str, &str)]) -> String {
    let url = Url::parse_with_params("http://localhost/", fields);
    url.ok().and_then(|url| url.query().map(str::to_owned)).unwrap_or_default()
}

fn encoded(text: &str) -> String {
    form(&[("", text)]).split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(secret: Option<&str>, methods: Option<&[&str]>) -> (String, Option<(String, String)>) {
        let secret = secret.map(SecretString::from);
        let methods: Option<Vec<String>> = methods.map(|names| names.iter().map(|&n| n.to_owned()).collect());
        let form = CodeForm {
            code: "a b&c",
            redirect_url: "https://c.example/x",
            verifier: "v",
            client_id: "id:1",
            client_secret: secret.as_ref(),
            methods: methods.as_deref(),
        };
        let request = form.request("https://p.example/token");
        let basic = request.basic.map(|(id, secret)| (id, secret.expose_secret().to_owned()));
        (request.form.expose_secret().to_owned(), basic)
    }

    #[test]
    fn a_client_authenticates_as_the_provider_supports_it() {
        let code = "grant_type=authorization_code&code=a+b%26c&redirect_uri=https%3A%2F%2Fc.example%2Fx&code_verifier=v";
        let basic = Some(("id%3A1".to_owned(), "s%25+%C3%A9".to_owned()));
        for methods in
            [None, Some(&["client_secret_post", "client_secret_basic"][..]), Some(&["private_key_jwt"])]
        {
            assert_eq!(request(Some("s% é"), methods), (code.to_owned(), basic.clone()), "{methods:?}");
        }
        let posted = format!("{code}&client_id=id%3A1&client_secret=s");
        assert_eq!(request(Some("s"), Some(&["client_secret_post"])), (posted, None));
        assert_eq!(request(None, None), (format!("{code}&client_id=id%3A1"), None));
    }

    #[test]
    fn an_error_of_a_provider_is_named_and_brings_no_markup() {
        let why = |body: &str| CodeAnswer::parse(body.as_bytes()).err().map(|error| error.why);
        assert_eq!(why(r#"{"id_token":"x"}"#), None);
        let named = "the provider refused the code: invalid_grant".to_owned();
        assert_eq!(why(r#"{"error":"invalid_grant","error_description":"used"}"#), Some(named));
        let cut = why(&format!(r#"{{"error":"<b>{}"}}"#, "x".repeat(100))).unwrap();
        assert!(cut.ends_with(&"x".repeat(63)) && !cut.contains('<') && cut.len() < 100, "{cut}");
        assert_eq!(why("<html>"), Some("the answer of the token endpoint is no JSON".to_owned()));
    }
}
