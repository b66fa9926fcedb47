//! Parses the query of a look-up. Knows no store.

use headrace_call_state::Rejection;
use headrace_domain::Code;
use headrace_objects::{ListOrder, MOST_ITEMS, MOST_ROWS, PageAsk};

/// The parameters of a query, as far as they are present.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectQuery {
    pub(crate) page: PageAsk,
    pub(crate) stream: bool,
    pub(crate) starting_after: Option<u64>,
    pub(crate) purpose: Option<String>,
}

/// The parameters that a list takes, and its page sizes.
pub(crate) struct ListParameters {
    fields: &'static [&'static str],
    usual: usize,
    most: usize,
}

impl ListParameters {
    /// Lists of items.
    pub(crate) const ITEMS: Self = Self {
        fields: &["limit", "order", "after", "stream", "starting_after"],
        usual: 20,
        most: MOST_ITEMS,
    };
    /// Lists of files.
    pub(crate) const FILES: Self =
        Self { fields: &["limit", "order", "after", "purpose"], usual: MOST_ROWS, most: MOST_ROWS };
    /// Lists of batches of files.
    pub(crate) const BATCHES: Self = Self { fields: &["limit", "after"], usual: 20, most: MOST_ITEMS };
    /// Lists of batches of messages.
    pub(crate) const MESSAGE_BATCHES: Self =
        Self { fields: &["limit", "after_id", "before_id"], usual: 20, most: 1_000 };
}

impl ObjectQuery {
    /// # Errors
    /// The first invalid parameter.
    pub(crate) fn read(fields: &[(String, String)]) -> Result<Self, Rejection> {
        Self::read_of(fields, &ListParameters::ITEMS)
    }

    /// As [`Self::read`], for another list.
    ///
    /// # Errors
    /// The first invalid parameter.
    pub(crate) fn read_of(fields: &[(String, String)], listing: &ListParameters) -> Result<Self, Rejection> {
        let mut query = Self::default();
        query.page.limit = listing.usual;
        for (name, value) in fields {
            let bad = |what: &str| {
                let message = format!("`{name}` must be {what}.");
                Rejection::new(Code::BadPage, message).keeping("A parameter of the query is wrong.")
            };
            match name.as_str() {
                // These have no effect: what they name is never present, or always.
                name if name.starts_with("include") || name == "beta" => {}
                name if !listing.fields.contains(&name) => {
                    return Err(bad("left out: there is no such parameter"));
                }
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=listing.most).contains(limit));
                    let numbers = format!("a number from 1 to {}", listing.most);
                    query.page.limit = limit.ok_or_else(|| bad(&numbers).with_param("limit"))?;
                }
                "order" => {
                    query.page.order = match value.as_str() {
                        "asc" => ListOrder::Ascending,
                        "desc" => ListOrder::Descending,
                        _ => return Err(bad("`asc` or `desc`").with_param("order")),
                    };
                }
                "after" | "after_id" => query.page.after = Some(value.clone()),
                "before_id" => query.page.before = Some(value.clone()),
                "purpose" => query.purpose = Some(value.clone()),
                "stream" => query.stream = value == "true",
                "starting_after" => {
                    let number = value.parse().ok();
                    query.starting_after =
                        Some(number.ok_or_else(|| bad("a sequence number").with_param("starting_after"))?);
                }
                _ => {}
            }
        }
        Ok(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_or_refused_by_name() {
        let read = |fields: &[(&str, &str)]| {
            let fields: Vec<_> = fields.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            ObjectQuery::read(&fields)
        };
        let query = read(&[("limit", "100"), ("order", "asc"), ("after", "x"), ("include[]", "y")]).unwrap();
        assert_eq!(
            query.page,
            PageAsk { limit: 100, order: ListOrder::Ascending, after: Some("x".to_owned()), before: None }
        );
        let query = read(&[("stream", "true"), ("starting_after", "7")]).unwrap();
        assert_eq!((query.stream, query.starting_after), (true, Some(7)));
        assert_eq!(read(&[]).unwrap(), ObjectQuery::default());
        for bad in
            [("limit", "0"), ("limit", "101"), ("order", "up"), ("starting_after", "-1"), ("page", "2")]
        {
            assert_eq!(read(&[bad]).unwrap_err().code, Code::BadPage, "{bad:?}");
        }
    }
}
