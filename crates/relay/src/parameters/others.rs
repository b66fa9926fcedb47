//! Parameters of the endpoints that generate no text: encoders, moderation, files and batches. A test reads the values
//! in the rows with the endpoints' own functions, so that a value that is not accepted fails. Knows no store.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::documented;
use super::fate::fate;
use headrace_wire::common::refused::{KnownParameters, rows};

/// An endpoint on the page.
pub(super) struct OtherEndpointPage {
    title: &'static str,
    /// The name by which a key allows the endpoint. Empty if every key may use it.
    named: &'static str,
    documented: &'static [(&'static str, &'static str)],
    /// The shortest body that is accepted, as JSON. Empty if the endpoint takes a form or a query.
    least: &'static str,
    /// A parameter, a value that is accepted, and its effect.
    rows: &'static [(&'static str, &'static str, &'static str)],
    /// Whether the endpoint knows the parameters of all encoder calls.
    encodes: bool,
}

const KEPT: &str = "`anchor` of `created_at` with `seconds` from 3600 to 2592000; otherwise the file is kept until it is deleted";

const USER: &str = "a label of the end user, by which traces and usage can be distinguished";

const OTHERS: &[OtherEndpointPage] = &[
    OtherEndpointPage {
        title: "POST /v1/embeddings",
        named: "embeddings",
        documented: &[("OpenAI", documented::OPENAI_EMBEDDINGS)],
        least: r#"{"model":"m","input":"x"}"#,
        rows: &[
            ("input", r#"["x"]"#, "a text, texts, ids or lists of ids"),
            ("model", r#""m""#, "an encoder, an alias or a route"),
            ("dimensions", "8", "cut to this many, if the model was made for it"),
            ("encoding_format", r#""base64""#, "`float` or `base64`, little-endian"),
            ("prompt_name", r#""query""#, "one of the prompts that the model's files have"),
            (
                "service_tier",
                r#""flex""#,
                "`flex` runs when nothing else waits, and otherwise one request at a time; `auto` and `default` are the usual; others are refused",
            ),
            (
                "headrace",
                r#"{"explain":true}"#,
                "Headrace's own: `explain` puts times and cost into the answer",
            ),
            ("timeout", "5", "Headrace's own: seconds within which the answer must come"),
            ("safety_identifier", r#""s""#, USER),
            ("user", r#""u""#, "the older name of `safety_identifier`"),
        ],
        encodes: true,
    },
    OtherEndpointPage {
        title: "POST /v1/rerank, POST /v2/rerank",
        named: "rerank",
        documented: &[("Jina, Cohere", documented::RERANK)],
        least: r#"{"model":"m","query":"q","documents":["d"]}"#,
        rows: &[
            ("query", r#""q""#, "a text"),
            ("documents", r#"["d"]"#, "texts, or objects with a `text`"),
            (
                "model",
                r#""m""#,
                "an encoder with a classifier of one label; one that embeds makes vectors alone",
            ),
            ("top_n", "1", "this many of the best"),
            ("return_documents", "true", "the texts beside their scores"),
            ("safety_identifier", r#""s""#, USER),
            ("user", r#""u""#, "the older name of `safety_identifier`"),
        ],
        encodes: true,
    },
    OtherEndpointPage {
        title: "POST /v1/score",
        named: "score",
        documented: &[("vLLM", documented::SCORE)],
        least: r#"{"model":"m","text_1":"a","text_2":"b"}"#,
        rows: &[
            ("text_1", r#""a""#, "a text, or as many as `text_2`"),
            ("text_2", r#"["b","c"]"#, "a text, or texts"),
            ("model", r#""m""#, "as of rerankings"),
            ("safety_identifier", r#""s""#, USER),
            ("user", r#""u""#, "the older name of `safety_identifier`"),
        ],
        encodes: true,
    },
    OtherEndpointPage {
        title: "POST /v1/moderations",
        named: "",
        documented: &[("OpenAI", documented::OPENAI_MODERATIONS)],
        least: r#"{"input":"x"}"#,
        rows: &[
            (
                "input",
                r#"[{"type":"text","text":"x"}]"#,
                "a text, texts or parts of text; images are refused",
            ),
            (
                "model",
                r#""omni-moderation-latest""#,
                "`headrace-rules`, and OpenAI's names for it; others are refused",
            ),
        ],
        encodes: false,
    },
    OtherEndpointPage {
        title: "POST /v1/files (a form)",
        named: "",
        documented: &[("OpenAI", documented::OPENAI_FILE)],
        least: "",
        rows: &[
            ("file", "", "its bytes, cut as they come; up to `objects.max_file`"),
            (
                "purpose",
                "",
                "`assistants`, `batch`, `evals`, `fine-tune`, `user_data` or `vision`; those of batches are read here",
            ),
            ("expires_after", "", KEPT),
        ],
        encodes: false,
    },
    OtherEndpointPage {
        title: "GET /v1/files (a query)",
        named: "",
        documented: &[("OpenAI", documented::OPENAI_FILES)],
        least: "",
        rows: &[
            ("after", "", "the last id of the page before"),
            ("limit", "", "from 1 to 10000"),
            ("order", "", "`asc` or `desc`, by time of creation"),
            ("purpose", "", "those of one purpose"),
        ],
        encodes: false,
    },
    OtherEndpointPage {
        title: "POST /v1/uploads",
        named: "",
        documented: &[("OpenAI", documented::OPENAI_UPLOAD)],
        least: r#"{"filename":"a","purpose":"batch","bytes":1,"mime_type":"text/plain"}"#,
        rows: &[
            ("filename", r#""a.jsonl""#, "up to 255 bytes, without its path"),
            ("purpose", r#""vision""#, "as of files"),
            ("bytes", "9", "how many the whole file will have; checked when it is complete"),
            ("mime_type", r#""text/jsonl""#, "repeated"),
            ("expires_after", r#"{"anchor":"created_at","seconds":3600}"#, KEPT),
        ],
        encodes: false,
    },
    OtherEndpointPage {
        title: "POST /v1/uploads/ID/complete",
        named: "",
        documented: &[("OpenAI", documented::OPENAI_UPLOADED)],
        least: r#"{"part_ids":[]}"#,
        rows: &[
            ("part_ids", r#"["p"]"#, "the parts, in their order"),
            ("md5", r#""900150983cd24fb0d6963f7d28e17f72""#, "the file's sum, which is checked"),
        ],
        encodes: false,
    },
    OtherEndpointPage {
        title: "POST /v1/batches",
        named: "",
        documented: &[("OpenAI", documented::OPENAI_BATCH)],
        least: r#"{"input_file_id":"f","endpoint":"/v1/responses","completion_window":"24h"}"#,
        rows: &[
            ("input_file_id", r#""file-1""#, "a file of purpose `batch`: a request in each line"),
            (
                "endpoint",
                r#""/v1/embeddings""#,
                "`/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or `/v1/responses`",
            ),
            ("completion_window", r#""90m""#, "`24h`, or a shorter time in hours, minutes or seconds"),
            ("metadata", r#"{"a":"b"}"#, "up to 16 labels, which answers repeat"),
            ("output_expires_after", r#"{"anchor":"created_at","seconds":3600}"#, KEPT),
        ],
        encodes: false,
    },
    OtherEndpointPage {
        title: "GET /v1/batches (a query)",
        named: "",
        documented: &[("OpenAI", documented::OPENAI_BATCHES)],
        least: "",
        rows: &[("after", "", "the last id of the page before"), ("limit", "", "from 1 to 100")],
        encodes: false,
    },
    OtherEndpointPage {
        title: "POST /v1/messages/batches",
        named: "",
        documented: &[("Anthropic", documented::ANTHROPIC_BATCH)],
        least: r#"{"requests":[{"custom_id":"a","params":{}}]}"#,
        rows: &[(
            "requests",
            r#"[{"custom_id":"b","params":{"x":1}}]"#,
            "a `custom_id` and the `params` of a call, each; up to `objects.max_requests_per_batch`",
        )],
        encodes: false,
    },
    OtherEndpointPage {
        title: "GET /v1/messages/batches (a query)",
        named: "",
        documented: &[("Anthropic", documented::ANTHROPIC_BATCHES)],
        least: "",
        rows: &[
            ("after_id", "", "the last id of the page before"),
            ("before_id", "", "the first id of the page behind"),
            ("limit", "", "from 1 to 1000"),
        ],
        encodes: false,
    },
];

impl OtherEndpointPage {
    fn fates(&self) -> BTreeMap<&'static str, String> {
        let known = self.encodes.then(|| rows(KnownParameters::Encode)).into_iter().flatten();
        let known = known.map(|(name, accept, why)| (*name, fate(accept, why)));
        let honoured = self.rows.iter().map(|(name, _, what)| {
            let needed = if self.least.contains(&format!("\"{name}\":")) { "required" } else { "honoured" };
            (*name, format!("{needed}: {what}"))
        });
        known.chain(honoured).collect()
    }

    fn documented_by(&self, name: &str) -> &'static str {
        let lists = |list: &str| list.split_whitespace().any(|listed| listed == name);
        self.documented.iter().find(|(_, list)| lists(list)).map_or("–", |(who, _)| who)
    }
}

/// Returns the sections of these endpoints.
pub(super) fn sections() -> String {
    let mut page = String::new();
    for other in OTHERS {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {}\n", other.title);
        if !other.named.is_empty() {
            let _ = write!(page, "\nIn traces, and in what keys may use: `{}`.\n", other.named);
        }
        page.push_str("\n| parameter | documented by | what becomes of it |\n|---|---|---|\n");
        for (name, fate) in other.fates() {
            let _ =
                writeln!(page, "| `{name}` | {} | {} |", other.documented_by(name), fate.replace('|', "\\|"));
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use headrace_domain::Endpoint;
    use serde_json::{Value, json};

    use super::*;
    use headrace_wire::BadRequest;
    use headrace_wire::WireLimits;

    type Reads = fn(&[u8], &WireLimits) -> Result<(), BadRequest>;

    /// The function that reads the body of each endpoint that has one.
    const READERS: &[(&str, Reads)] = &[
        ("/v1/embeddings", |body, limits| headrace_wire::parse(Endpoint::Embeddings, body, limits).map(drop)),
        ("/v1/rerank,", |body, limits| headrace_wire::parse(Endpoint::Rerank, body, limits).map(drop)),
        ("/v1/score", |body, limits| headrace_wire::parse(Endpoint::Score, body, limits).map(drop)),
        ("/v1/moderations", |body, limits| headrace_wire::openai::moderation_texts(body, limits).map(drop)),
        ("/v1/uploads", |body, limits| headrace_wire::openai::upload_body(body, limits).map(drop)),
        ("/v1/uploads/ID/complete", |body, limits| {
            headrace_wire::openai::complete_body(body, limits).map(drop)
        }),
        ("/v1/batches", |body, limits| headrace_wire::openai::batch_body(body, limits).map(drop)),
        ("/v1/messages/batches", |body, limits| {
            headrace_wire::anthropic::message_batch(body, limits, 9).map(drop)
        }),
    ];

    #[test]
    fn every_documented_parameter_has_its_row() {
        for other in OTHERS {
            let fates = other.fates();
            let names = other.documented.iter().flat_map(|(_, list)| list.split_whitespace());
            let missing: Vec<&str> = names.filter(|name| !fates.contains_key(name)).collect();
            assert!(missing.is_empty(), "{}: {missing:?}", other.title);
        }
    }

    #[test]
    fn each_row_is_what_its_endpoint_takes() {
        for other in OTHERS.iter().filter(|other| !other.least.is_empty()) {
            let path = other.title.split(' ').nth(1);
            let (_, reads) = READERS.iter().find(|(of, _)| Some(*of) == path).unwrap();
            let read = |body: &Value| reads(body.to_string().as_bytes(), &WireLimits::default());
            let least: Value = serde_json::from_str(other.least).unwrap();
            read(&least).unwrap();
            for (name, value, _) in other.rows {
                let mut body = least.clone();
                body[*name] = serde_json::from_str(value).unwrap();
                read(&body).unwrap_or_else(|bad| panic!("{} {name}: {bad}", other.title));
                // The parameter is read under this name, because a wrong value is refused at its place.
                body[*name] = json!({"no": ["such", "value"]});
                let bad = read(&body).unwrap_err();
                assert!(bad.param.is_some_and(|param| param.starts_with(name)), "{} {name}", other.title);
            }
            for name in least.as_object().unwrap().keys() {
                let mut body = least.clone();
                body.as_object_mut().unwrap().remove(name);
                let bad = read(&body).unwrap_err();
                assert_eq!(bad.code.name(), "missing_required_parameter", "{} {name}", other.title);
            }
            let mut body = least;
            body["no_such_parameter"] = json!(1);
            assert_eq!(read(&body).unwrap_err().code.name(), "unknown_parameter", "{}", other.title);
        }
    }
}
