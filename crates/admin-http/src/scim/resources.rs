//! Users and groups as SCIM documents, and back. Must not know requests.

use headrace_domain::rfc3339::Rfc3339;
use headrace_identity::{
    AccountId, AccountKind, GroupProfile, GroupRecord, ScimSubject, UserEmail, UserLogin, UserProfile,
    UserRecord,
};
use serde_json::{Map, Value, json};

use super::filter::flag;
use super::patch::field;
use super::problem::{ScimKind, ScimProblem};
use super::schemas::{GROUP, USER};

/// A user with everything that clients may read.
pub(super) fn user_json(user: &UserRecord, groups: &[GroupRecord], base: &str) -> Value {
    let mut json = user_document(&user.profile);
    let groups: Vec<Value> = groups
        .iter()
        .map(|group| {
            let reference = format!("{base}/Groups/{}", group.id);
            json!({ "value": group.id.as_str(), "$ref": reference, "display": group.profile.name, "type": "direct" })
        })
        .collect();
    if let Some(fields) = json.as_object_mut() {
        fields.insert("schemas".to_owned(), json!([USER]));
        fields.insert("id".to_owned(), user.id.as_str().into());
        if !groups.is_empty() {
            fields.insert("groups".to_owned(), groups.into());
        }
        let location = format!("{base}/Users/{}", user.id);
        let times = (Rfc3339(user.created).to_string(), Rfc3339(user.changed).to_string());
        fields.insert("meta".to_owned(), meta("User", times, user.version, &location));
    }
    json
}

/// A group with everything that clients may read.
pub(super) fn group_json(group: &GroupRecord, has_members: bool, base: &str) -> Value {
    let mut fields = Map::new();
    fields.insert("schemas".to_owned(), json!([GROUP]));
    fields.insert("id".to_owned(), group.id.as_str().into());
    fields.insert("displayName".to_owned(), group.profile.name.as_str().into());
    if let Some(id) = &group.profile.external_id {
        fields.insert("externalId".to_owned(), id.as_str().into());
    }
    if has_members && !group.profile.members.is_empty() {
        let member = |id: &AccountId| {
            let reference = format!("{base}/Users/{id}");
            json!({ "value": id.as_str(), "$ref": reference, "type": "User" })
        };
        fields.insert("members".to_owned(), group.profile.members.iter().map(member).collect());
    }
    let location = format!("{base}/Groups/{}", group.id);
    let times = (Rfc3339(group.created).to_string(), Rfc3339(group.changed).to_string());
    fields.insert("meta".to_owned(), meta("Group", times, group.version, &location));
    Value::Object(fields)
}

fn meta(kind: &str, (created, changed): (String, String), version: u64, location: &str) -> Value {
    json!({
        "resourceType": kind,
        "created": created,
        "lastModified": changed,
        "location": location,
        "version": format!("W/\"{version}\""),
    })
}

/// What clients may change of a user, as a document.
pub(super) fn user_document(profile: &UserProfile) -> Value {
    let mut fields = Map::new();
    fields.insert("userName".to_owned(), profile.name.as_str().into());
    fields.insert("active".to_owned(), profile.active.into());
    for (name, text) in [("displayName", &profile.display_name), ("externalId", &profile.external_id)] {
        if let Some(text) = text {
            fields.insert(name.to_owned(), text.as_str().into());
        }
    }
    let mut name = Map::new();
    for (part, text) in [
        ("formatted", &profile.formatted_name),
        ("givenName", &profile.given_name),
        ("familyName", &profile.family_name),
    ] {
        if let Some(text) = text {
            name.insert(part.to_owned(), text.as_str().into());
        }
    }
    if !name.is_empty() {
        fields.insert("name".to_owned(), name.into());
    }
    let email = |email: &UserEmail| {
        let mut json = json!({ "value": email.value, "primary": email.primary });
        if let (Some(kind), Some(fields)) = (&email.kind, json.as_object_mut()) {
            fields.insert("type".to_owned(), kind.as_str().into());
        }
        json
    };
    if !profile.emails.is_empty() {
        fields.insert("emails".to_owned(), profile.emails.iter().map(email).collect());
    }
    Value::Object(fields)
}

/// What clients may change of a group, as a document.
pub(super) fn group_document(profile: &GroupProfile) -> Value {
    let members: Vec<_> = profile.members.iter().map(|id| json!({ "value": id.as_str() })).collect();
    let mut json = json!({ "displayName": profile.name, "externalId": profile.external_id });
    if let Some(fields) = json.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
        if !members.is_empty() {
            fields.insert("members".to_owned(), members.into());
        }
    }
    json
}

fn invalid(detail: impl Into<String>) -> ScimProblem {
    ScimProblem::bad(ScimKind::InvalidValue, detail)
}

/// A text. `None` if it is absent, `null` or empty.
fn text(document: &Value, name: &str) -> Result<Option<String>, ScimProblem> {
    match field(document, name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(_) => Err(invalid(format!("`{name}` is no text"))),
    }
}

/// Reads a whole document into a profile. The role and the login stay.
///
/// # Errors
/// [`ScimKind::InvalidValue`] for a missing name, or a value of another type.
pub(super) fn read_user(document: &Value, profile: &mut UserProfile) -> Result<(), ScimProblem> {
    let name = text(document, "userName")?.ok_or_else(|| invalid("`userName` is missing"))?;
    let active = match field(document, "active") {
        None | Some(Value::Null) => true,
        Some(value) => flag(value).ok_or_else(|| invalid("`active` is neither true nor false"))?,
    };
    let parts = match field(document, "name") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(parts) if parts.is_object() => parts.clone(),
        Some(_) => return Err(invalid("`name` is no object")),
    };
    let emails = match field(document, "emails") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(emails)) => emails.iter().map(read_email).collect::<Result<Vec<_>, _>>()?,
        Some(one) => vec![read_email(one)?],
    };
    let mut emails: Vec<UserEmail> = emails.into_iter().flatten().collect();
    // At most one is the preferred one (RFC 7643, 2.4): the last that says so.
    let preferred = emails.iter().rposition(|email| email.primary);
    for (at, email) in emails.iter_mut().enumerate() {
        email.primary = Some(at) == preferred;
    }
    *profile = UserProfile {
        name,
        display_name: text(document, "displayName")?,
        given_name: text(&parts, "givenName")?,
        family_name: text(&parts, "familyName")?,
        formatted_name: text(&parts, "formatted")?,
        emails,
        external_id: text(document, "externalId")?,
        login: profile.login.take(),
        role: profile.role,
        active,
    };
    Ok(())
}

/// Reads an address. `None` if it has no value, as after the removal of its value.
fn read_email(email: &Value) -> Result<Option<UserEmail>, ScimProblem> {
    if let Value::String(value) = email {
        return Ok(Some(UserEmail { value: value.clone(), kind: None, primary: false }));
    }
    if !email.is_object() {
        return Err(invalid("an element of `emails` is no object"));
    }
    let Some(value) = text(email, "value")? else { return Ok(None) };
    let primary = match field(email, "primary") {
        None | Some(Value::Null) => false,
        Some(value) => flag(value).ok_or_else(|| invalid("`primary` is neither true nor false"))?,
    };
    Ok(Some(UserEmail { value, kind: text(email, "type")?, primary }))
}

/// Reads a whole document into a profile. The role and the tier stay.
///
/// # Errors
/// [`ScimKind::InvalidValue`] for a missing name, or members that are no ids of users.
pub(super) fn read_group(document: &Value, profile: &mut GroupProfile) -> Result<(), ScimProblem> {
    let name = text(document, "displayName")?.ok_or_else(|| invalid("`displayName` is missing"))?;
    let members = match field(document, "members") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(members)) => members.as_slice(),
        Some(_) => return Err(invalid("`members` is no list")),
    };
    let member = |member: &Value| {
        let id = field(member, "value").or(Some(member)).and_then(Value::as_str).unwrap_or_default();
        let id = AccountId::new(id).ok().filter(|id| id.kind() == AccountKind::User);
        id.ok_or_else(|| invalid("a member is the id of a user, `usr_…`: groups within groups are not kept"))
    };
    profile.members = members.iter().map(member).collect::<Result<_, _>>()?;
    profile.name = name;
    profile.external_id = text(document, "externalId")?;
    Ok(())
}

/// Sets issuer and subject of a user's tokens, if the credential names an issuer and the user has the attribute.
pub(super) fn set_login(profile: &mut UserProfile, issuer: Option<&str>, subject: ScimSubject) {
    let Some(issuer) = issuer else { return };
    let subject = match subject {
        ScimSubject::ExternalId => profile.external_id.clone(),
        ScimSubject::UserName => Some(profile.name.clone()),
    };
    if let Some(subject) = subject {
        profile.login = Some(UserLogin { issuer: issuer.to_owned(), subject });
    }
}
