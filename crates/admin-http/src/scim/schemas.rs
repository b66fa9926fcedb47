//! What the service can do, as it describes itself (RFC 7643, 5 to 8). The attributes here are those that it keeps.

use headrace_identity::AccountKind;
use serde_json::{Value, json};

/// Maximum number of resources of a page.
pub(super) const MAX_ROWS: usize = 500;

/// The schema of users.
pub(super) const USER: &str = "urn:ietf:params:scim:schemas:core:2.0:User";
/// The schema of groups.
pub(super) const GROUP: &str = "urn:ietf:params:scim:schemas:core:2.0:Group";
const SCHEMA: &str = "urn:ietf:params:scim:schemas:core:2.0:Schema";
const RESOURCE_TYPE: &str = "urn:ietf:params:scim:schemas:core:2.0:ResourceType";
const CONFIG: &str = "urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig";

/// The attributes of a resource that clients may change.
pub(super) fn attributes(kind: AccountKind) -> Vec<&'static str> {
    match kind {
        AccountKind::Group => vec!["displayName", "members", "externalId"],
        _ => vec!["userName", "name", "displayName", "emails", "active", "externalId"],
    }
}

/// The description at this path: `None` if it is none, `Some(None)` if there is no such schema or type.
pub(super) fn find(kind: &str, id: Option<&str>, base: &str) -> Option<Option<Value>> {
    let list = match kind {
        "ServiceProviderConfig" => return Some(id.is_none().then(|| config(base))),
        "ResourceTypes" => [AccountKind::User, AccountKind::Group].map(|kind| resource_type(kind, base)),
        "Schemas" => [user_schema(base), group_schema(base)],
        _ => return None,
    };
    let Some(id) = id else {
        return Some(Some(json!({
            "schemas": ["urn:ietf:params:scim:api:messages:2.0:ListResponse"],
            "totalResults": list.len(),
            "startIndex": 1,
            "itemsPerPage": list.len(),
            "Resources": list,
        })));
    };
    Some(list.into_iter().find(|one| one["id"] == id))
}

fn config(base: &str) -> Value {
    json!({
        "schemas": [CONFIG],
        "documentationUri": "https://github.com/headrace/headrace/blob/main/docs/recipes/scim.md",
        "patch": { "supported": true },
        "bulk": { "supported": false, "maxOperations": 0, "maxPayloadSize": 0 },
        "filter": { "supported": true, "maxResults": MAX_ROWS },
        "changePassword": { "supported": false },
        "sort": { "supported": false },
        "etag": { "supported": true },
        "authenticationSchemes": [{
            "type": "oauthbearertoken",
            "name": "Bearer credential",
            "description": "A credential that `headrace scim create ORG` makes",
            "primary": true,
        }],
        "meta": {
            "resourceType": "ServiceProviderConfig",
            "location": format!("{base}/ServiceProviderConfig"),
        },
    })
}

fn resource_type(kind: AccountKind, base: &str) -> Value {
    let (name, endpoint, schema, description) = match kind {
        AccountKind::Group => ("Group", "/Groups", GROUP, "Groups of users"),
        _ => ("User", "/Users", USER, "Users"),
    };
    json!({
        "schemas": [RESOURCE_TYPE],
        "id": name,
        "name": name,
        "endpoint": endpoint,
        "description": description,
        "schema": schema,
        "schemaExtensions": [],
        "meta": { "resourceType": "ResourceType", "location": format!("{base}/ResourceTypes/{name}") },
    })
}

/// The kind of an attribute: its type, and how often and by whom it is written.
#[derive(Clone, Copy)]
struct SchemaAttribute {
    name: &'static str,
    kind: &'static str,
    description: &'static str,
    is_list: bool,
    is_required: bool,
    is_unique: bool,
    is_exact: bool,
    mutability: &'static str,
}

const TEXT: SchemaAttribute = SchemaAttribute {
    name: "",
    kind: "string",
    description: "",
    is_list: false,
    is_required: false,
    is_unique: false,
    is_exact: false,
    mutability: "readWrite",
};

fn shown(attribute: SchemaAttribute, sub: Vec<Value>) -> Value {
    let SchemaAttribute { name, kind, description, is_list, is_required, is_unique, is_exact, mutability } =
        attribute;
    let mut json = json!({
        "name": name,
        "type": kind,
        "description": description,
        "multiValued": is_list,
        "required": is_required,
        "mutability": mutability,
        "returned": "default",
    });
    let Some(fields) = json.as_object_mut() else { return json };
    if matches!(kind, "string" | "reference") {
        fields.insert("caseExact".to_owned(), is_exact.into());
        fields.insert("uniqueness".to_owned(), if is_unique { "server" } else { "none" }.into());
    }
    if kind == "reference" {
        fields.insert("referenceTypes".to_owned(), json!(["User", "Group"]));
    }
    if !sub.is_empty() {
        fields.insert("subAttributes".to_owned(), sub.into());
    }
    json
}

fn external_id() -> Value {
    let description = "The resource's id at the identity provider";
    shown(SchemaAttribute { name: "externalId", is_exact: true, description, ..TEXT }, Vec::new())
}

fn user_schema(base: &str) -> Value {
    let text = |name, description| shown(SchemaAttribute { name, description, ..TEXT }, Vec::new());
    let flag =
        |name, description| shown(SchemaAttribute { name, kind: "boolean", description, ..TEXT }, Vec::new());
    let fixed = |name, kind, description| {
        shown(
            SchemaAttribute { name, kind, description, is_exact: true, mutability: "readOnly", ..TEXT },
            Vec::new(),
        )
    };
    let name = vec![
        text("formatted", "The full name"),
        text("familyName", "The family name"),
        text("givenName", "The given name"),
    ];
    let emails = vec![
        text("value", "The address"),
        text("type", "The kind of address, such as work"),
        flag("primary", "Whether it is the preferred address"),
    ];
    let groups = vec![
        fixed("value", "string", "The id of the group"),
        fixed("$ref", "reference", "The address of the group"),
        fixed("display", "string", "The name of the group"),
        fixed("type", "string", "How the user is a member: direct"),
    ];
    let complex = |name, description, is_list, mutability| SchemaAttribute {
        name,
        kind: "complex",
        description,
        is_list,
        mutability,
        ..TEXT
    };
    let user_name = SchemaAttribute {
        name: "userName",
        description: "The name, unique in the organisation, in any case",
        is_required: true,
        is_unique: true,
        ..TEXT
    };
    // Every user is active or not, so that the attribute cannot be removed.
    let active = SchemaAttribute {
        name: "active",
        kind: "boolean",
        description: "Whether the user's keys, tokens and sessions work",
        is_required: true,
        ..TEXT
    };
    json!({
        "schemas": [SCHEMA],
        "id": USER,
        "name": "User",
        "description": "A user of an organisation",
        "attributes": [
            shown(user_name, Vec::new()),
            shown(complex("name", "The parts of the user's name", false, "readWrite"), name),
            text("displayName", "The name for display"),
            shown(complex("emails", "E-mail addresses", true, "readWrite"), emails),
            shown(active, Vec::new()),
            external_id(),
            shown(complex("groups", "The user's groups", true, "readOnly"), groups),
        ],
        "meta": { "resourceType": "Schema", "location": format!("{base}/Schemas/{USER}") },
    })
}

fn group_schema(base: &str) -> Value {
    let fixed = |name, kind, description| {
        shown(
            SchemaAttribute { name, kind, description, is_exact: true, mutability: "immutable", ..TEXT },
            Vec::new(),
        )
    };
    let mut member_type = fixed("type", "string", "The type of the member: User");
    if let Some(fields) = member_type.as_object_mut() {
        fields.insert("canonicalValues".to_owned(), json!(["User"]));
    }
    let members = vec![
        fixed("value", "string", "The id of the user"),
        fixed("$ref", "reference", "The address of the user"),
        member_type,
    ];
    let name = SchemaAttribute {
        name: "displayName",
        description: "The name, unique in the organisation",
        is_required: true,
        is_unique: true,
        ..TEXT
    };
    let list = SchemaAttribute {
        name: "members",
        kind: "complex",
        description: "The users in the group",
        is_list: true,
        ..TEXT
    };
    json!({
        "schemas": [SCHEMA],
        "id": GROUP,
        "name": "Group",
        "description": "A group of users, which may give them a role and a tier",
        "attributes": [shown(name, Vec::new()), shown(list, members), external_id()],
        "meta": { "resourceType": "Schema", "location": format!("{base}/Schemas/{GROUP}") },
    })
}
