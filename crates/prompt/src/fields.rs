//! A few named values as a map of the template: what is looked up by its name costs some comparisons, and nothing is hashed to build it.
//! Must not know what the names mean.

use std::borrow::Cow;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectExt};

/// Names and what they stand for, in their order, each name once.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<(Cow<'static, str>, Value)>);

impl Fields {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    /// `name` stands for `value`, whatever it stood for before.
    pub(crate) fn put(&mut self, name: impl Into<Cow<'static, str>>, value: Value) {
        let name = name.into();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }
}

impl Object for Fields {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let (_, value) = self.0.iter().find(|(name, _)| name == key)?;
        Some(value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.0.iter().map(|(name, _)| Value::from(name.as_ref()))))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Self {
        Self::from_object(fields)
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    use super::*;

    #[test]
    fn a_template_sees_no_difference_to_a_map() {
        let pairs = [("role", Value::from("user")), ("content", Value::from("a")), ("name", Value::from(()))];
        let mut fields = Fields::with_capacity(2);
        for (name, value) in [("role", Value::from("nobody")), ("content", Value::from("a"))] {
            fields.put(name, value);
        }
        fields.put("role".to_owned(), Value::from("user"));
        fields.put("name", Value::from(()));
        let (fields, map) = (Value::from(fields), Value::from_pairs(pairs));
        assert_eq!(fields, map);
        let empty = Value::from(Fields::default());
        for source in [
            "{{ m.role }}{{ m['content'] }}{{ m.none }}{{ m['none'] }}{{ m.name is none }}",
            "{{ 'role' in m }}{{ 'none' in m }}{{ 1 in m }}{{ m is mapping }}{{ m is defined }}",
            "{% for key in m %}{{ key }} {% endfor %}{% for key, value in m | items %}{{ key }}={{ value }} {% endfor %}",
            "{{ m | tojson }}{{ m }}{{ m | length }}{% if m %}yes{% endif %}{{ m | list }}{{ m | dictsort }}",
            "{{ m == n }}{{ m != n }}{{ m.none is undefined }}",
        ] {
            let shown = |m: &Value, n: &Value| {
                Environment::new().render_str(source, context! { m => m, n => n }).unwrap()
            };
            assert_eq!(shown(&fields, &map), shown(&map, &fields), "{source}");
            assert_eq!(shown(&fields, &map), shown(&map, &map), "{source}");
            let none = Value::from_pairs(Vec::<(&str, Value)>::new());
            assert_eq!(shown(&empty, &map), shown(&none, &map), "{source}");
        }
    }
}
