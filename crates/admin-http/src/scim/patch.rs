//! PATCH (RFC 7644, 3.5.2), as strict clients and as Entra ID and Okta send it: operations in any case, booleans as text,
//! operations without a path, paths as the names of fields, and members that are removed by value. Works on documents.

use headrace_identity::AccountKind;
use serde_json::{Map, Value};

use super::filter::{FilterTerm, flag, parse_terms};
use super::problem::{ScimKind, ScimProblem};
use super::schemas::attributes;

/// Maximum number of operations of a request.
const MAX_OPERATIONS: usize = 1_000;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatchVerb {
    Add,
    Replace,
    Remove,
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PatchOperation {
    verb: PatchVerb,
    path: Option<String>,
    /// `None` if there is none. `null` counts as a value.
    value: Option<Value>,
}

impl PatchOperation {
    /// Parses the operations of a body.
    ///
    /// # Errors
    /// [`ScimKind::InvalidSyntax`], or [`ScimKind::NoTarget`] for a removal without a path.
    pub(super) fn parse_all(body: &Value) -> Result<Vec<Self>, ScimProblem> {
        let wrong = |detail: &str| ScimProblem::bad(ScimKind::InvalidSyntax, detail);
        let list = field(body, "Operations").and_then(Value::as_array);
        let list = list.ok_or_else(|| wrong("`Operations` is missing or no list"))?;
        if list.len() > MAX_OPERATIONS {
            return Err(wrong("a request has at most 1000 operations"));
        }
        list.iter().map(Self::parse).collect()
    }

    fn parse(operation: &Value) -> Result<Self, ScimProblem> {
        let wrong = |detail: &str| ScimProblem::bad(ScimKind::InvalidSyntax, detail);
        let verb = field(operation, "op").and_then(Value::as_str).unwrap_or_default();
        let verb = match verb.to_ascii_lowercase().as_str() {
            "add" => PatchVerb::Add,
            "replace" => PatchVerb::Replace,
            "remove" => PatchVerb::Remove,
            _ => return Err(wrong("`op` is none of add, replace and remove")),
        };
        let path = match field(operation, "path") {
            None | Some(Value::Null) => None,
            Some(Value::String(path)) if path.trim().is_empty() => None,
            Some(Value::String(path)) => Some(path.trim().to_owned()),
            Some(_) => return Err(ScimProblem::bad(ScimKind::InvalidPath, "`path` is no text")),
        };
        let value = field(operation, "value").cloned();
        match (verb, &path, &value) {
            (PatchVerb::Remove, None, _) => {
                Err(ScimProblem::bad(ScimKind::NoTarget, "a removal names what it removes in `path`"))
            }
            (PatchVerb::Add | PatchVerb::Replace, _, None) => Err(wrong("`value` is missing")),
            _ => Ok(Self { verb, path, value }),
        }
    }
}

/// A field of an object, by its name in any case.
pub(super) fn field<'v>(object: &'v Value, name: &str) -> Option<&'v Value> {
    let fields = object.as_object()?;
    fields
        .get(name)
        .or_else(|| fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}

/// A parsed path: `attribute[filter].sub`.
struct PatchPath {
    /// The attribute as documents write it. `None` if it is one that this service does not keep.
    attribute: Option<&'static str>,
    filter: Vec<FilterTerm>,
    sub: Option<String>,
}

impl PatchPath {
    fn parse(text: &str, kind: AccountKind) -> Result<Self, ScimProblem> {
        let invalid = |detail: String| ScimProblem::bad(ScimKind::InvalidPath, detail);
        let (head, filter, rest) = match text.split_once('[') {
            None => (text, Vec::new(), None),
            Some((head, rest)) => {
                let (filter, rest) = rest
                    .rsplit_once(']')
                    .ok_or_else(|| invalid(format!("`{text}` has no closing bracket")))?;
                let filter = parse_terms(filter)
                    .map_err(|_| invalid(format!("the filter in `{text}` is not valid")))?;
                (head, filter, Some(rest))
            }
        };
        // `urn:ietf:params:scim:schemas:core:2.0:User:name.givenName`. The version has a dot, too.
        let is_urn = head.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("urn:"));
        let head = if is_urn { head.rsplit(':').next().unwrap_or_default() } else { head };
        let (name, sub) = match (head.split_once('.'), rest) {
            (Some((name, sub)), None) => (name, Some(sub)),
            (None, Some(rest)) => (head, rest.strip_prefix('.')),
            (None, None) => (head, None),
            (Some(_), Some(_)) => return Err(invalid(format!("`{text}` is no path of an attribute"))),
        };
        let is_name = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_alphabetic())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '$'))
        };
        if !is_name(name) || sub.is_some_and(|sub| !is_name(sub)) {
            return Err(invalid(format!("`{text}` is no path of an attribute")));
        }
        let attribute = attributes(kind).into_iter().find(|known| known.eq_ignore_ascii_case(name));
        Ok(Self { attribute, filter, sub: sub.map(str::to_owned) })
    }
}

/// Applies operations to a document, in order.
///
/// # Errors
/// [`ScimKind::InvalidPath`], [`ScimKind::NoTarget`] or [`ScimKind::InvalidValue`]. The document must then be dropped.
pub(super) fn apply(
    mut document: Map<String, Value>,
    kind: AccountKind,
    operations: &[PatchOperation],
) -> Result<Map<String, Value>, ScimProblem> {
    for operation in operations {
        let PatchOperation { verb, path, value } = operation;
        match (path, value) {
            (Some(path), value) => at_path(&mut document, kind, *verb, path, value.as_ref())?,
            (None, Some(Value::Object(fields))) => {
                for (path, value) in fields {
                    let is_known = PatchPath::parse(path, kind).is_ok();
                    // A whole resource as a value also has `schemas`, and extensions under the names of their schemas.
                    if is_known {
                        at_path(&mut document, kind, *verb, path, Some(value))?;
                    }
                }
            }
            (None, _) => {
                let detail = "without `path`, `value` is an object with the attributes to change";
                return Err(ScimProblem::bad(ScimKind::InvalidValue, detail));
            }
        }
    }
    Ok(document)
}

fn at_path(
    document: &mut Map<String, Value>,
    kind: AccountKind,
    verb: PatchVerb,
    path: &str,
    value: Option<&Value>,
) -> Result<(), ScimProblem> {
    let PatchPath { attribute, filter, sub } = PatchPath::parse(path, kind)?;
    // Identity providers send attributes that this service does not keep. They must not stop the others.
    let Some(attribute) = attribute else { return Ok(()) };
    let verb = if value == Some(&Value::Null) { PatchVerb::Remove } else { verb };
    let is_list = matches!(attribute, "emails" | "members");
    match (is_list, verb) {
        (true, _) => list(document, attribute, &filter, sub.as_deref(), verb, value),
        (false, _) if !filter.is_empty() => Err(ScimProblem::bad(
            ScimKind::InvalidPath,
            format!("`{attribute}` has one value, and takes no filter"),
        )),
        (false, PatchVerb::Remove) => {
            match (sub, document.get_mut(attribute).and_then(Value::as_object_mut)) {
                (Some(sub), Some(fields)) => remove_field(fields, &sub),
                (Some(_), None) => {}
                (None, _) => drop(document.remove(attribute)),
            }
            Ok(())
        }
        (false, PatchVerb::Add | PatchVerb::Replace) => {
            let value = value.cloned().unwrap_or_default();
            match sub {
                Some(sub) => merge(document, attribute, Map::from_iter([(sub, value)])),
                None => match value {
                    Value::Object(fields) if attribute == "name" => merge(document, attribute, fields),
                    value => drop(document.insert(attribute.to_owned(), value)),
                },
            }
            Ok(())
        }
    }
}

fn remove_field(fields: &mut Map<String, Value>, name: &str) {
    fields.retain(|key, _| !key.eq_ignore_ascii_case(name));
}

/// Sets fields of a complex attribute. Other fields stay.
fn merge(document: &mut Map<String, Value>, attribute: &str, new: Map<String, Value>) {
    let before = document.entry(attribute).or_insert_with(|| Value::Object(Map::new()));
    if !before.is_object() {
        *before = Value::Object(Map::new());
    }
    let Some(fields) = before.as_object_mut() else { return };
    for (name, value) in new {
        remove_field(fields, &name);
        fields.insert(name, value);
    }
}

/// Changes an attribute with several values.
fn list(
    document: &mut Map<String, Value>,
    attribute: &'static str,
    filter: &[FilterTerm],
    sub: Option<&str>,
    verb: PatchVerb,
    value: Option<&Value>,
) -> Result<(), ScimProblem> {
    let mut values = match document.remove(attribute) {
        Some(Value::Array(values)) => values,
        _ => Vec::new(),
    };
    let matches = |element: &Value| filter.iter().all(|term| meets(element, term));
    match (verb, sub) {
        (PatchVerb::Remove, None) if filter.is_empty() => match value.filter(|value| !value.is_null()) {
            None => values.clear(),
            // Entra ID names the members to remove in `value`. A value that names none removes none.
            Some(named) => {
                let named: Vec<&Value> =
                    elements(named).into_iter().filter_map(|named| key_of(named)).collect();
                if named.is_empty() {
                    let detail = format!("the value of a removal from `{attribute}` names no element");
                    return Err(ScimProblem::bad(ScimKind::NoTarget, detail));
                }
                values.retain(|element| key_of(element).is_none_or(|key| !named.contains(&key)));
            }
        },
        (PatchVerb::Remove, None) => values.retain(|element| !matches(element)),
        (PatchVerb::Remove, Some(sub)) => {
            for fields in
                values.iter_mut().filter(|element| matches(element)).filter_map(Value::as_object_mut)
            {
                remove_field(fields, sub);
            }
        }
        (PatchVerb::Add | PatchVerb::Replace, sub) => {
            let value = value.cloned().unwrap_or_default();
            if sub.is_none() && filter.is_empty() {
                let new = elements(&value).into_iter().cloned();
                if verb == PatchVerb::Replace {
                    values = new.collect();
                } else {
                    add(&mut values, new);
                }
            } else {
                let fields = match (sub, value) {
                    (Some(sub), value) => Map::from_iter([(sub.to_owned(), value)]),
                    (None, Value::Object(fields)) => fields,
                    (None, _) => {
                        let detail = format!("the value at `{attribute}[…]` is no object");
                        return Err(ScimProblem::bad(ScimKind::InvalidValue, detail));
                    }
                };
                if !values.iter().any(matches) {
                    // Entra ID sets `emails[type eq "work"].value` of users without such an address.
                    let of_filter = filter.iter().map(|term| (term.attribute.clone(), term.value.clone()));
                    values.push(Value::Object(of_filter.collect()));
                }
                for element in values.iter_mut().filter(|element| matches(element)) {
                    let Some(before) = element.as_object_mut() else { continue };
                    for (name, value) in &fields {
                        remove_field(before, name);
                        before.insert(name.clone(), value.clone());
                    }
                }
            }
        }
    }
    if !values.is_empty() {
        document.insert(attribute.to_owned(), Value::Array(values));
    }
    Ok(())
}

/// The elements of a list, or the one element that a client sends in place of a list.
fn elements(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(values) => values.iter().collect(),
        Value::Null => Vec::new(),
        one => vec![one],
    }
}

/// What identifies an element: its `value`, or the element itself if it is a text.
fn key_of(element: &Value) -> Option<&Value> {
    match element {
        Value::String(text) if !text.is_empty() => Some(element),
        _ => field(element, "value").filter(|value| value.as_str().is_some_and(|text| !text.is_empty())),
    }
}

/// Adds elements that are not there yet. An element with the same `value` is replaced.
fn add(values: &mut Vec<Value>, new: impl Iterator<Item = Value>) {
    for element in new {
        let key = key_of(&element).cloned();
        match values.iter_mut().find(|before| key.is_some() && key_of(before) == key.as_ref()) {
            Some(before) => *before = element,
            None => values.push(element),
        }
    }
}

fn meets(element: &Value, term: &FilterTerm) -> bool {
    let found = field(element, &term.attribute);
    match (&term.value, found) {
        (Value::String(text), Some(Value::String(found))) => text.eq_ignore_ascii_case(found),
        (wanted, found) => match (flag(wanted), found) {
            (Some(wanted), found) => found.and_then(flag).unwrap_or(false) == wanted,
            (None, found) => found == Some(wanted),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(kind: AccountKind, before: Value, operations: Value) -> Result<Value, ScimProblem> {
        let operations = PatchOperation::parse_all(&json!({ "Operations": operations }))?;
        let Value::Object(before) = before else { panic!() };
        apply(before, kind, &operations).map(Value::Object)
    }

    #[test]
    fn users_are_changed_as_identity_providers_ask() {
        let before = || json!({ "userName": "ann", "active": true, "name": { "givenName": "Ann" } });
        let rows = [
            // Entra ID.
            (
                json!([{ "op": "Replace", "path": "active", "value": "False" }]),
                json!({ "userName": "ann", "active": "False", "name": { "givenName": "Ann" } }),
            ),
            (
                json!([{ "op": "Add", "path": "emails[type eq \"work\"].value", "value": "a@b" }]),
                json!({ "userName": "ann", "active": true, "name": { "givenName": "Ann" }, "emails": [{ "type": "work", "value": "a@b" }] }),
            ),
            (
                json!([{ "op": "Add", "value": { "name.familyName": "Lee", "title": "x", "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department": "d" } }]),
                json!({ "userName": "ann", "active": true, "name": { "givenName": "Ann", "familyName": "Lee" } }),
            ),
            // Okta.
            (
                json!([{ "op": "replace", "value": { "active": false } }]),
                json!({ "userName": "ann", "active": false, "name": { "givenName": "Ann" } }),
            ),
            (
                json!([{ "op": "remove", "path": "name.givenName" }]),
                json!({ "userName": "ann", "active": true, "name": {} }),
            ),
            (json!([{ "op": "replace", "path": "displayName", "value": null }]), before()),
            (
                json!([{ "op": "add", "path": "urn:ietf:params:scim:schemas:core:2.0:User:displayName", "value": "A" }]),
                json!({ "userName": "ann", "active": true, "name": { "givenName": "Ann" }, "displayName": "A" }),
            ),
        ];
        for (operations, expected) in rows {
            assert_eq!(
                patched(AccountKind::User, before(), operations.clone()).unwrap(),
                expected,
                "{operations}"
            );
        }
        for wrong in [
            json!([{ "op": "move", "path": "active" }]),
            json!([{ "op": "remove" }]),
            json!([{ "op": "add", "path": "emails[type", "value": 1 }]),
            json!([{ "op": "add", "path": "active" }]),
            json!([{ "op": "replace", "value": "x" }]),
            json!([{ "op": "replace", "path": "active[a eq 1]", "value": true }]),
            json!("x"),
        ] {
            assert!(patched(AccountKind::User, before(), wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn members_are_removed_by_value_and_never_by_mistake() {
        let group = |members: &[&str]| {
            let members: Vec<_> = members.iter().map(|id| json!({ "value": id })).collect();
            match members.is_empty() {
                true => json!({ "displayName": "g" }),
                false => json!({ "displayName": "g", "members": members }),
            }
        };
        let all = || group(&["usr_1", "usr_2", "usr_3"]);
        let rows = [
            (
                json!([{ "op": "Remove", "path": "members", "value": [{ "value": "usr_2" }] }]),
                group(&["usr_1", "usr_3"]),
            ),
            (json!([{ "op": "remove", "path": "members[value eq \"usr_1\"]" }]), group(&["usr_2", "usr_3"])),
            (json!([{ "op": "remove", "path": "members", "value": { "value": "usr_9" } }]), all()),
            (json!([{ "op": "remove", "path": "members[value eq \"usr_9\"]" }]), all()),
            (json!([{ "op": "remove", "path": "members" }]), group(&[])),
            (
                json!([{ "op": "Add", "path": "members", "value": [{ "value": "usr_3" }, { "value": "usr_4" }] }]),
                group(&["usr_1", "usr_2", "usr_3", "usr_4"]),
            ),
            (
                json!([{ "op": "replace", "path": "members", "value": [{ "value": "usr_4" }] }]),
                group(&["usr_4"]),
            ),
            (json!([{ "op": "replace", "value": { "displayName": "g", "members": [] } }]), group(&[])),
        ];
        for (operations, expected) in rows {
            assert_eq!(
                patched(AccountKind::Group, all(), operations.clone()).unwrap(),
                expected,
                "{operations}"
            );
        }
        for value in [json!([]), json!([{}]), json!([{ "value": "" }]), json!("")] {
            let operations = json!([{ "op": "remove", "path": "members", "value": value }]);
            assert!(patched(AccountKind::Group, all(), operations).is_err(), "{value}");
        }
    }
}
