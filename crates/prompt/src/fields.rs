//! A small map of named values for templates. A look-up costs a few comparisons, and building the map hashes nothing.
//! Must not know the meaning of the names.

use std::borrow::Cow;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectExt};

/// Up to this number of names, look-ups compare names one by one.
const FEW: usize = 16;

/// Names and their values, in the order of insertion.
#[derive(Debug, Default)]
pub(crate) struct FieldList(Vec<(Cow<'static, str>, Value)>);

impl FieldList {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    /// Sets the value of `name` and replaces an earlier one.
    pub(crate) fn put(&mut self, name: impl Into<Cow<'static, str>>, value: Value) {
        let name = name.into();
        // Only the first [`FEW`] names are compared. Among many names, the map that is built from them keeps the last
        // value.
        match self.0.iter_mut().take(FEW).find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }
}

impl Object for FieldList {
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

impl From<FieldList> for Value {
    /// Builds a hash map if there are more than [`FEW`] names, because a caller may give any number of them.
    fn from(fields: FieldList) -> Self {
        if fields.0.len() > FEW {
            return Self::from_pairs(fields.0);
        }
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
        let mut fields = FieldList::with_capacity(2);
        for (name, value) in [("role", Value::from("nobody")), ("content", Value::from("a"))] {
            fields.put(name, value);
        }
        fields.put("role".to_owned(), Value::from("user"));
        fields.put("name", Value::from(()));
        let (fields, map) = (Value::from(fields), Value::from_pairs(pairs));
        assert_eq!(fields, map);
        let empty = Value::from(FieldList::default());
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
    #[test]
    fn many_names_are_no_more_work_each_and_the_last_of_a_name_counts() {
        for count in [FEW - 1, FEW, FEW + 1, 2 * FEW, 200_000] {
            let mut fields = FieldList::default();
            for at in 0..count {
                fields.put(format!("name {at}"), Value::from(at));
            }
            for at in [0, count / 2, count - 1] {
                fields.put(format!("name {at}"), Value::from("again"));
            }
            let value = Value::from(fields);
            assert_eq!(value.len(), Some(count));
            for at in [0, count / 2, count - 1] {
                assert_eq!(value.get_attr(&format!("name {at}")).unwrap(), Value::from("again"), "{count}");
            }
            assert_eq!(value.get_attr("name 1").unwrap(), Value::from(1), "{count}");
        }
    }
}
