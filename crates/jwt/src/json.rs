//! JSON objects without repeated names, for tokens (RFC 8725, 2.4): two readers of `{"iss":"a","iss":"b"}` could each
//! see another issuer. Must not know what the names mean.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Parses a JSON object in UTF-8. Returns `None` if the bytes are something else, or an object in it repeats a name.
pub(crate) fn parse_object(bytes: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice::<UniqueNames>(bytes) {
        Ok(UniqueNames(Value::Object(object))) => Some(object),
        _ => None,
    }
}

/// A JSON value in which no object repeats a name.
struct UniqueNames(Value);

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueNamesVisitor).map(Self)
    }
}

struct UniqueNamesVisitor;

impl<'de> Visitor<'de> for UniqueNamesVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(UniqueNames(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, UniqueNames(value))) = entries.next_entry::<String, UniqueNames>()? {
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a name is repeated"));
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_without_repeated_names_are_parsed() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(300), "]".repeat(300));
        for (text, good) in [
            (r#"{}"#, true),
            (r#"{"a":1,"b":{"a":[1.5,null,true,"x",-2]}}"#, true),
            (r#"{"a":1,"a":1}"#, false),
            (r#"{"a":1,"\u0061":2}"#, false),
            (r#"{"b":[{"c":1,"c":2}]}"#, false),
            (r#"[1]"#, false),
            (r#""text""#, false),
            (r#"{"a":1} x"#, false),
            (r#"{"a":NaN}"#, false),
            ("", false),
            (&deep, false),
        ] {
            assert_eq!(parse_object(text.as_bytes()).is_some(), good, "{text}");
        }
        assert!(parse_object(b"{\"a\":\"\xff\"}").is_none(), "it must be UTF-8");
    }

    #[test]
    fn values_are_those_of_serde_json() {
        let text = r#"{"a":[1,-1,1.25,"é",{"b":null}],"c":true}"#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(Value::Object(parse_object(text.as_bytes()).unwrap()), expected);
    }
}
