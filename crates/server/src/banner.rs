//! The text that a server prints when it is ready: its address, the state of its keys, and what to try. Knows nothing
//! of how the server runs. Shows a secret only to a person, never to a service manager's journal.

use std::path::Path;
use std::time::Duration;

use headrace_catalog::ServedModel;
use headrace_config::stopping::SERVE_DRAIN_DELAY;
use secrecy::zeroize::Zeroizing;

use crate::datadir::first_key_file;
use crate::first_start::{FirstKey, FirstKeys, KEY_VARIABLE};

/// How a server was started, which decides for whom it prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartManner {
    /// By a person at a terminal: play prices, a key and lines to paste.
    Up,
    /// From a file, usually by a machine: no secret is printed.
    Serve,
}

impl StartManner {
    /// How long calls are accepted after SIGTERM by default.
    pub(crate) const fn drain_delay(self) -> Duration {
        match self {
            Self::Up => Duration::ZERO,
            Self::Serve => SERVE_DRAIN_DELAY,
        }
    }
}

/// A served model.
pub(crate) struct ModelOffer {
    pub(crate) name: String,
    /// Maximum length of a prompt or text in tokens, if known.
    pub(crate) context: Option<u32>,
    /// The endpoints at which it answers. Empty if only its upstream knows them.
    pub(crate) endpoints: &'static [&'static str],
}

impl ModelOffer {
    pub(crate) fn of(model: &ServedModel) -> Self {
        let (name, backend) = (model.name.to_string(), &model.backend);
        Self { name, context: backend.context_window(), endpoints: backend.endpoints() }
    }

    /// Its name. A model that does not answer prompts is followed by its endpoints.
    fn described(&self) -> String {
        let (encodes, context) = (!self.answers(), self.context);
        match context {
            Some(context) if encodes => {
                format!("{} ({}, {context} tokens)", self.name, self.endpoints.join(" and "))
            }
            Some(context) => format!("{} ({context} tokens of context)", self.name),
            None => self.name.clone(),
        }
    }

    fn answers(&self) -> bool {
        self.endpoints.is_empty() || self.endpoints.iter().any(|path| path.ends_with("completions"))
    }
}

/// A first call to a model.
struct ExampleCall {
    /// The path behind `/v1/`.
    path: &'static str,
    /// The JSON of the body after the model's name.
    fields: String,
    /// The same call with the official Python SDK, if the SDK supports it.
    python: Option<String>,
}

impl ModelOffer {
    /// A call that the model answers.
    fn example(&self) -> ExampleCall {
        let name = &self.name;
        let is_at = |path| self.endpoints.contains(&path);
        if is_at("embeddings") {
            return ExampleCall {
                path: "embeddings",
                fields: format!("\"input\": \"{QUESTION}\""),
                python: Some(format!(
                    "  answer = client.embeddings.create(model=\"{name}\", input=\"{QUESTION}\")
  print(answer.data[0].embedding)"
                )),
            };
        }
        if is_at("rerank") {
            let documents = "\"documents\": [\"A gateway checks the key.\", \"Bananas are yellow.\"]";
            let fields = format!("\"query\": \"{QUESTION}\", {documents}");
            return ExampleCall { path: "rerank", fields, python: None };
        }
        if !self.endpoints.is_empty() && !is_at("chat/completions") {
            return ExampleCall {
                path: "completions",
                fields: format!("\"prompt\": \"{QUESTION}\", \"max_tokens\": 50"),
                python: Some(format!(
                    "  answer = client.completions.create(model=\"{name}\", prompt=\"{QUESTION}\", max_tokens=50)
  print(answer.choices[0].text)"
                )),
            };
        }
        ExampleCall {
            path: "chat/completions",
            fields: format!("\"messages\": [{{\"role\": \"user\", \"content\": \"{QUESTION}\"}}]"),
            python: Some(format!(
                "  question = [{{\"role\": \"user\", \"content\": \"{QUESTION}\"}}]
  for chunk in client.chat.completions.create(model=\"{name}\", messages=question, stream=True):
      print(chunk.choices[0].delta.content or \"\", end=\"\", flush=True)"
            )),
        }
    }
}

/// What the text is made from.
pub(crate) struct WelcomeBanner<'a> {
    /// The API's base, without a path: `http://127.0.0.1:8080`. `None` on a server without an edge.
    pub(crate) url: Option<&'a str>,
    /// The address of the metrics.
    pub(crate) metrics: Option<String>,
    pub(crate) data_dir: &'a Path,
    pub(crate) models: &'a [ModelOffer],
    pub(crate) keys: &'a FirstKeys,
    /// The address at which operators sign in.
    pub(crate) admin: Option<&'a str>,
    pub(crate) manner: StartManner,
    /// Time since the process started.
    pub(crate) took: Duration,
}

/// Maximum number of models that are named.
const MODELS_NAMED: usize = 12;
/// A question that the demo model was trained on.
const QUESTION: &str = "What happens when I call an LLM API?";

impl WelcomeBanner<'_> {
    /// The text.
    pub(crate) fn text(&self) -> Zeroizing<String> {
        let mut models: Vec<String> =
            self.models.iter().take(MODELS_NAMED).map(ModelOffer::described).collect();
        if self.models.len() > MODELS_NAMED {
            models.push(format!("and {} more", self.models.len() - MODELS_NAMED));
        }
        let place = self.url.map_or_else(String::new, |url| format!(" at {url}"));
        let mut text = Zeroizing::new(format!(
            "headrace {} is ready{place} after {} ms\n\n  models   {}\n  data     {}\n",
            env!("CARGO_PKG_VERSION"),
            self.took.as_millis(),
            models.join(", "),
            self.data_dir.display(),
        ));
        if let Some(metrics) = &self.metrics {
            text.push_str(&format!("  metrics  {metrics}/metrics\n"));
        }
        if let Some(admin) = self.admin {
            text.push_str(&format!("  console  {admin}\n"));
        }
        match (self.keys, self.manner) {
            (FirstKeys::First(first), StartManner::Up) => text.push_str(&self.first_steps(first)),
            (FirstKeys::First(first), StartManner::Serve) => text.push_str(&self.where_the_key_is(first)),
            (FirstKeys::Works, _) => text.push_str(&format!("  key      the one in {KEY_VARIABLE}\n")),
            (FirstKeys::Added, _) => text.push_str(&format!(
                "  key      the one in {KEY_VARIABLE}: added to project `default`, beside the keys that were here\n"
            )),
            (FirstKeys::Kept | FirstKeys::Refused(_), _) => {}
        }
        if !matches!((self.keys, self.manner), (FirstKeys::First(_), StartManner::Up)) {
            text.push_str(&format!(
                "  keys     headrace keys list{0}; headrace keys create --name NAME{0} makes a new one\n",
                self.at()
            ));
        }
        text
    }

    fn where_the_key_is(&self, first: &FirstKey) -> String {
        let where_it_is = match first.secret {
            Some(_) => format!(
                "the first one is in {}: fetch it and remove the file",
                first_key_file(self.data_dir).display()
            ),
            None => format!("the one in {KEY_VARIABLE} or first_start.key_file"),
        };
        format!(
            "  key      {where_it_is}\n  credit   {} to play with, for organisation `default`\n",
            first.credit
        )
    }

    fn first_steps(&self, first: &FirstKey) -> String {
        let (shown, key) = match &first.secret {
            Some(secret) => (format!("{}   (shown this once)", secret.expose()), secret.expose().to_owned()),
            None => {
                (format!("the one in {KEY_VARIABLE} or first_start.key_file"), format!("${KEY_VARIABLE}"))
            }
        };
        let python_key = match &first.secret {
            Some(secret) => format!("\"{}\"", secret.expose()),
            None => format!("os.environ[\"{KEY_VARIABLE}\"]"),
        };
        let key_lines = format!(
            "  key      {shown}\n  credit   {} to play with, for organisation `default`\n",
            first.credit
        );
        let Some(url) = self.url else { return key_lines };
        let import = if first.secret.is_some() { "" } else { "  import os\n" };
        let at = self.at();
        let answers = self.models.iter().find(|model| model.answers());
        let unknown = ModelOffer { name: "MODEL".to_owned(), context: None, endpoints: &[] };
        let model = answers.or(self.models.first()).unwrap_or(&unknown);
        let ExampleCall { path, fields, python } = model.example();
        let client = python.map_or(String::new(), |lines| {
            format!(
                "From Python, with the official SDK (pip install openai):

{import}  from openai import OpenAI
  client = OpenAI(base_url=\"{url}/v1\", api_key={python_key})
{lines}

"
            )
        });
        let chat = match model.answers() {
            true => {
                format!("  headrace chat{at}                    ask it in this terminal, without a key\n")
            }
            false => String::new(),
        };
        format!(
            "{key_lines}
Ask it:

  curl {url}/v1/{path} -H \"Authorization: Bearer {key}\" \\
    -H \"Content-Type: application/json\" \\
    -d '{{\"model\": \"{name}\", {fields}}}'

{client}Then try:

{chat}  headrace trace --last{at}            where the time and the money of that call went
  headrace keys create --name me{at}   a key for one more caller
  headrace credit show{at}             what is left

",
            name = model.name,
        )
    }

    /// The flag that names this server's data directory, if it is not the default.
    fn at(&self) -> String {
        let default = Path::new("./headrace-data");
        if self.data_dir == default {
            String::new()
        } else {
            format!(" --data-dir {}", self.data_dir.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrace_admin::SecretText;
    use headrace_domain::NanoDollars;

    fn welcome(keys: &FirstKeys, manner: StartManner) -> String {
        let encodes = ModelOffer { name: "e".to_owned(), context: Some(9), endpoints: &["embeddings"] };
        let models =
            [encodes, ModelOffer { name: "m".to_owned(), context: Some(8), endpoints: &["completions"] }];
        welcome_of(&models, keys, manner)
    }

    fn welcome_of(models: &[ModelOffer], keys: &FirstKeys, manner: StartManner) -> String {
        welcome_at(Some("http://h:1"), models, keys, manner)
    }

    fn welcome_at(url: Option<&str>, models: &[ModelOffer], keys: &FirstKeys, manner: StartManner) -> String {
        let data_dir = Path::new("/d");
        let took = Duration::from_millis(12);
        let welcome = WelcomeBanner { url, metrics: None, data_dir, models, keys, admin: None, manner, took };
        welcome.text().to_string()
    }

    fn made() -> FirstKeys {
        let secret = Some(SecretText::new("sk-made".to_owned()));
        FirstKeys::First(FirstKey { secret, credit: NanoDollars::new(10_000_000_000) })
    }

    #[test]
    fn a_key_is_shown_when_it_was_made_and_never_when_it_was_chosen() {
        let shown = welcome(&made(), StartManner::Up);
        for part in [
            "http://h:1",
            "sk-made",
            "$10.00",
            "curl ",
            "OpenAI(",
            "trace --last --data-dir /d",
            "12 ms",
            "e (embeddings, 9 tokens), m (8 tokens of context)",
            "\"model\": \"m\"",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
        let chosen = FirstKey { secret: None, credit: NanoDollars::ZERO };
        let chosen = welcome(&FirstKeys::First(chosen), StartManner::Up);
        assert!(chosen.contains("$HEADRACE_BOOTSTRAP_KEY") && chosen.contains("import os"), "{chosen}");
        let again = welcome(&FirstKeys::Kept, StartManner::Up);
        assert!(again.contains("keys list") && !again.contains("curl"), "{again}");
        let added = welcome(&FirstKeys::Added, StartManner::Up);
        assert!(added.contains("added to project `default`"), "{added}");
    }

    #[test]
    fn a_server_without_an_address_shows_its_key_and_no_call() {
        let shown = welcome_at(None, &[], &made(), StartManner::Up);
        assert!(shown.contains(" is ready after 12 ms") && shown.contains("sk-made"), "{shown}");
        assert!(shown.contains("$10.00") && !shown.contains("http") && !shown.contains("curl"), "{shown}");
    }

    #[test]
    fn the_first_call_is_one_that_the_model_answers() {
        for (endpoints, path, has_python, has_chat) in [
            (&[][..], "/v1/chat/completions", true, true),
            (
                &["chat/completions", "responses", "messages", "completions"],
                "/v1/chat/completions",
                true,
                true,
            ),
            (&["completions"], "/v1/completions", true, true),
            (&["embeddings"], "/v1/embeddings", true, false),
            (&["rerank", "score"], "/v1/rerank", false, false),
        ] {
            let shown = welcome_of(
                &[ModelOffer { name: "only".to_owned(), context: None, endpoints }],
                &made(),
                StartManner::Up,
            );
            assert!(shown.contains(&format!("curl http://h:1{path} ")), "{shown}");
            assert_eq!(shown.contains("OpenAI("), has_python, "{shown}");
            assert_eq!(shown.contains("headrace chat"), has_chat, "{shown}");
            let body = shown.split("-d '").nth(1).unwrap().split('\'').next().unwrap();
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["model"], "only");
        }
        let none = welcome_of(&[], &made(), StartManner::Up);
        assert!(none.contains("sk-made"), "the key is shown once, whatever is served: {none}");
    }

    #[test]
    fn a_service_manager_s_journal_gets_no_key_and_no_tutorial() {
        let shown = welcome(&made(), StartManner::Serve);
        assert!(!shown.contains("sk-") && !shown.contains("curl"), "{shown}");
        assert!(shown.contains("/d/first-key") && shown.contains("$10.00"), "{shown}");
    }
}
