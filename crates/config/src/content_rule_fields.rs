//! The settings of content rules and of the judges that they ask. Must not know how they are read.

use super::field::{SettingField, field};
use super::value::SettingKind;

pub(super) const JUDGES: &str = "moderation.judges";

/// The settings of content rules.
pub(super) const FIELDS: &[SettingField] = &[
    field(
        "moderation.rules",
        SettingKind::Tables,
        "",
        "Each table has `name`, `kind` (`\"words\"`, `\"regex\"`, `\"pii\"`, `\"classifier\"` or `\"judge\"`), `words`, `pattern`, `entities`, `labels` or `judge`, and `action` (`\"block\"`, `\"flag\"` or `\"redact\"`). `applies_to` is what the rule checks: `\"input\"` (the default), `\"output\"`, or a list of `\"input\"`, `\"answer\"`, `\"reasoning\"` and `\"tool_calls\"`. `\"redact\"` takes a `replacement`, or on input `restore = true`: models get placeholders, and answers get the values back. A `pattern` for output or redaction that can match a text of any length needs a `window`: the longest match to find, 1 to 1024 characters. `entities` names what a `\"pii\"` rule recognises, and without it a rule recognises all: `card`, `iban`, `email`, `phone`, `ip`, `mac`, `jwt`, `api_key`, `crypto`, `us_ssn`, `uk_nhs`, `es_nif`, `it_fiscal_code`, `pl_pesel`, `in_aadhaar`, `fi_person_id`. `labels` names what a `\"classifier\"` rule looks for (`insult`, `threat`, `prompt_injection`; without it, all), and `threshold` the probability from which it matches (0.8): see [the classifier](classifier.md). `judge` names a table of `moderation.judges`, and with `mode = \"async\"` no call waits for it. `projects` lists the projects whose calls the rule checks; without it, all. With `dry_run = true` a rule only names its matches in traces. Further optional keys are `whole_word` and `message`. For the texts of the input that rules check, see [content_policy](errors.md#content_policy); for answers, see [PII](recipes/pii.md).",
    ),
    field(
        JUDGES,
        SettingKind::Tables,
        "",
        "Judges on other servers that rules of kind `\"judge\"` ask. Each table has `name` and `url`. `api` is `\"moderations\"` (the default), an endpoint like OpenAI's `POST /v1/moderations`, or `\"chat\"`, any chat model. `model` is the model to ask, and `question` what a chat model is asked: it answers `safe` or `unsafe`, or `{\"flagged\": true}`. `categories` lists the categories of a moderation endpoint that count, and `threshold` (0.01 to 1) the score from which they do; by default its own verdict counts. A call waits at most `deadline` (`\"100ms\"`, at most a minute) for a verdict. Without one, the text is blocked, or passes with `without_verdict = \"pass\"`. `input_price` and `output_price` are what its server charges for a million tokens, so that traces name the cost. `key_file` holds the key, and `ca_file` further authorities. See [judges](recipes/judges.md).",
    ),
];
