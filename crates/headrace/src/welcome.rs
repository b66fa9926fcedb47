//! What a server says when it is ready: where it is, the first key, and what to try. Knows nothing of how it runs.

use std::path::Path;
use std::time::Duration;

use crate::first_start::{FirstKey, KEY_VARIABLE};

/// What there is to say.
pub(crate) struct Welcome<'a> {
    /// The API's base, without a path: `http://127.0.0.1:8080`.
    pub(crate) url: &'a str,
    /// Where metrics are.
    pub(crate) metrics: Option<String>,
    pub(crate) data_dir: &'a Path,
    /// Names and contexts, in tokens.
    pub(crate) models: &'a [(String, u32)],
    /// `None`: not the first start.
    pub(crate) first: Option<&'a FirstKey>,
    /// Since the process began.
    pub(crate) took: Duration,
}

/// A question that the demo model was taught.
const QUESTION: &str = "What happens when I call an LLM API?";

impl Welcome<'_> {
    /// The text.
    pub(crate) fn text(&self) -> String {
        let models: Vec<String> = self
            .models
            .iter()
            .map(|(name, context)| format!("{name} ({context} tokens of context)"))
            .collect();
        let mut text = format!(
            "headrace {} is ready at {} after {} ms\n\n  models   {}\n  data     {}\n",
            env!("CARGO_PKG_VERSION"),
            self.url,
            self.took.as_millis(),
            models.join(", "),
            self.data_dir.display(),
        );
        if let Some(metrics) = &self.metrics {
            text.push_str(&format!("  metrics  {metrics}/metrics\n"));
        }
        match self.first {
            Some(first) => text.push_str(&self.first_steps(first)),
            None => text.push_str(&format!(
                "  keys     headrace keys list{0}; headrace keys create --name NAME{0} makes a new one\n",
                self.at()
            )),
        }
        text
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
        let import = if first.secret.is_some() { "" } else { "  import os\n" };
        let (url, at) = (self.url, self.at());
        let model = self.models.first().map_or("", |(name, _)| name.as_str());
        format!(
            "  key      {shown}
  credit   {credit} to play with, for organisation `default`

Ask it:

  curl {url}/v1/chat/completions -H \"Authorization: Bearer {key}\" \\
    -H \"Content-Type: application/json\" \\
    -d '{{\"model\": \"{model}\", \"messages\": [{{\"role\": \"user\", \"content\": \"{QUESTION}\"}}]}}'

From Python, with the official SDK (pip install openai):

{import}  from openai import OpenAI
  client = OpenAI(base_url=\"{url}/v1\", api_key={python_key})
  question = [{{\"role\": \"user\", \"content\": \"{QUESTION}\"}}]
  for chunk in client.chat.completions.create(model=\"{model}\", messages=question, stream=True):
      print(chunk.choices[0].delta.content or \"\", end=\"\", flush=True)

Then try:

  HEADRACE_API_KEY={key} headrace chat --url {url}
  headrace trace --last{at}          where the time and the money of that call went
  headrace keys create --name me{at} a key for one more caller
  headrace credit show{at}           what is left

",
            credit = first.credit,
        )
    }

    /// The flag that finds this server's directory, where it is not the default.
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

    fn welcome(first: Option<&FirstKey>) -> String {
        let models = [("m".to_owned(), 8)];
        let data_dir = Path::new("/d");
        let took = Duration::from_millis(12);
        Welcome { url: "http://h:1", metrics: None, data_dir, models: &models, first, took }.text()
    }

    #[test]
    fn a_key_is_shown_when_it_was_made_and_never_when_it_was_chosen() {
        let credit = NanoDollars::new(10_000_000_000);
        let made = welcome(Some(&FirstKey { secret: Some(SecretText::new("sk-made".to_owned())), credit }));
        for part in
            ["http://h:1", "sk-made", "$10.00", "curl ", "OpenAI(", "trace --last --data-dir /d", "12 ms"]
        {
            assert!(made.contains(part), "{part}\n{made}");
        }
        let chosen = welcome(Some(&FirstKey { secret: None, credit }));
        assert!(chosen.contains("$HEADRACE_BOOTSTRAP_KEY") && chosen.contains("import os"), "{chosen}");
        let again = welcome(None);
        assert!(again.contains("keys list") && !again.contains("curl"), "{again}");
    }
}
