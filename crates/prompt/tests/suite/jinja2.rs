//! Jinja2's own filters and tests, compared with Jinja2's results (`record_jinja2.py` recorded them).

use headrace_prompt::{ChatTemplate, SpecialTokenTexts, TemplateLimits};
use serde_json::{Value, json};

use crate::support::{data, options};

/// The cases in which the template engine differs, by the beginning of the template. It has no `%` between texts and no
/// random texts, and it has lists where Python has generators.
const OTHERWISE: [&str; 3] =
    ["{{ lipsum is defined", "{{ '%d items' %", "{{ numbers|map('string') is sequence"];

#[test]
fn filters_and_tests_do_what_they_do_in_jinja2() {
    let recorded: Value = serde_json::from_slice(&data("jinja2.json")).unwrap();
    let messages = json!([{ "role": "user", "content": "" }]);
    let mut differ = Vec::new();
    for row in recorded["rows"].as_array().unwrap() {
        let field = |at: usize| row[at].as_str().unwrap();
        let (name, source, expected) = (field(1), field(2), field(3));
        let tokens = SpecialTokenTexts::default();
        let template = match ChatTemplate::compile(source, &tokens, TemplateLimits::default()) {
            Ok(template) => template,
            Err(error) => {
                differ.push(format!("{name}: {source}\n  {error}"));
                continue;
            }
        };
        match template.render_values(&messages, None, &recorded["context"], &options(true)) {
            Ok(rendered) if rendered.text() == expected => {
                assert!(
                    !OTHERWISE.iter().any(|known| source.starts_with(known)),
                    "{source} is as in Jinja2 now"
                );
            }
            Ok(rendered) => {
                differ
                    .push(format!("{name}: {source}\n  ours   {:?}\n  theirs {expected:?}", rendered.text()));
            }
            Err(error) => differ.push(format!("{name}: {source}\n  {error}")),
        }
    }
    differ.retain(|row| !OTHERWISE.iter().any(|known| row.contains(&format!(": {known}"))));
    assert!(differ.is_empty(), "{}:\n{}", differ.len(), differ.join("\n"));
}
