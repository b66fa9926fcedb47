//! Pages of a list, with the cursors that the vendors' APIs use: how a store reads the rows and how they are cut. Knows
//! no store.

use crate::ItemRecord;
use crate::items::{list_bytes, push_list};

/// The order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ListOrder {
    /// Newest first.
    #[default]
    Descending,
    /// Oldest first.
    Ascending,
}

/// The page that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageAsk {
    /// Maximum number of items, at least 1.
    pub limit: usize,
    /// The order of the items.
    pub order: ListOrder,
    /// Id of the item before the page.
    pub after: Option<String>,
    /// Id of the item after the page.
    pub before: Option<String>,
}

/// Maximum number of items on a page of items. Other lists may allow more.
pub const MOST_ITEMS: usize = 100;
/// Maximum number of rows on any page.
pub const MOST_ROWS: usize = 10_000;

impl Default for PageAsk {
    fn default() -> Self {
        Self { limit: 20, order: ListOrder::default(), after: None, before: None }
    }
}

impl PageAsk {
    /// The id of the item next to the page, if any. `before` takes precedence.
    pub fn cursor(&self) -> Option<&str> {
        self.before.as_deref().or(self.after.as_deref())
    }

    /// The order in which to read rows from the cursor on. A page that ends before an item is read backwards from that
    /// item.
    pub fn reads(&self) -> ListOrder {
        match (self.order, &self.before) {
            (order, None) => order,
            (ListOrder::Descending, Some(_)) => ListOrder::Ascending,
            (ListOrder::Ascending, Some(_)) => ListOrder::Descending,
        }
    }

    /// Number of rows to read: one more than the page has, to see whether more follow.
    pub fn rows(&self) -> usize {
        self.limit.clamp(1, MOST_ROWS) + 1
    }

    /// Cuts the page from `rows`, which were read in the order [`Self::reads`], and restores the page's order. Also
    /// returns whether more follow.
    pub fn cut<T>(&self, mut rows: Vec<T>) -> (Vec<T>, bool) {
        let most = self.rows() - 1;
        let has_more = rows.len() > most;
        rows.truncate(most);
        if self.before.is_some() {
            rows.reverse();
        }
        (rows, has_more)
    }
}

/// A page of items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ItemPage {
    /// The items of the page.
    pub items: Vec<ItemRecord>,
    /// Whether more items follow.
    pub has_more: bool,
}

/// Cuts a page from a complete list, which is sorted oldest first. The page is empty if the cursor is not in the list.
/// If several items have the cursor's id, the oldest counts.
pub fn page(mut items: Vec<ItemRecord>, ask: &PageAsk) -> ItemPage {
    if let Some(cursor) = ask.cursor() {
        match (items.iter().position(|item| item.id == cursor), ask.reads()) {
            (Some(at), ListOrder::Ascending) => drop(items.drain(..=at)),
            (Some(at), ListOrder::Descending) => items.truncate(at),
            (None, _) => items.clear(),
        }
    }
    if ask.reads() == ListOrder::Descending {
        items.reverse();
    }
    items.truncate(ask.rows());
    let (items, has_more) = ask.cut(items);
    ItemPage { items, has_more }
}

impl ItemPage {
    /// `{"object":"list","data":[…],"first_id":…,"last_id":…,"has_more":…}`
    pub fn json(&self) -> String {
        let id = |item: Option<&ItemRecord>| serde_json::json!(item.map(|item| &item.id)).to_string();
        let tail = format!(
            ",\"first_id\":{},\"last_id\":{},\"has_more\":{}}}",
            id(self.items.first()),
            id(self.items.last()),
            self.has_more
        );
        // Pages can be long, so each byte is written once, into memory that does not grow.
        let mut json = String::with_capacity(HEAD.len() + list_bytes(&self.items) + tail.len());
        json.push_str(HEAD);
        push_list(&mut json, &self.items);
        json.push_str(&tail);
        json
    }
}

/// The start of a page's JSON.
const HEAD: &str = "{\"object\":\"list\",\"data\":";

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ids: &[&str]) -> Vec<ItemRecord> {
        ids.iter()
            .map(|id| ItemRecord { id: (*id).to_owned(), json: format!("{{\"id\":\"{id}\"}}") })
            .collect()
    }

    #[test]
    fn pages_follow_each_other_in_either_order() {
        let all = ["a", "b", "c", "d", "e"];
        for (order, expected) in [
            (ListOrder::Ascending, all.to_vec()),
            (ListOrder::Descending, all.iter().rev().copied().collect()),
        ] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = page(list(&all), &PageAsk { limit: 2, order, after, before: None });
                seen.extend(page.items.iter().map(|item| item.id.clone()));
                after = page.items.last().map(|item| item.id.clone());
                if !page.has_more {
                    break;
                }
            }
            assert_eq!(seen, expected);
        }
        let before = |limit, before: &str| {
            let ask = PageAsk { limit, before: Some(before.to_owned()), ..PageAsk::default() };
            let page = page(list(&all), &ask);
            (page.items.into_iter().map(|item| item.id).collect::<Vec<_>>(), page.has_more)
        };
        assert_eq!(before(2, "a"), (vec!["c".to_owned(), "b".to_owned()], true), "those next to it");
        assert_eq!(before(2, "c"), (vec!["e".to_owned(), "d".to_owned()], false));
        assert_eq!(before(2, "x"), (vec![], false));
        // Two items have the same id. The older one counts in both reading directions.
        for (order, expected) in
            [(ListOrder::Ascending, vec!["b", "a", "c"]), (ListOrder::Descending, vec![])]
        {
            let ask = PageAsk { limit: 5, order, after: Some("a".to_owned()), ..PageAsk::default() };
            let page = page(list(&["a", "b", "a", "c"]), &ask);
            assert_eq!(page.items.iter().map(|item| item.id.as_str()).collect::<Vec<_>>(), expected);
        }
        let behind = page(list(&all), &PageAsk { after: Some("x".to_owned()), ..PageAsk::default() });
        assert_eq!(behind, ItemPage::default());
        assert_eq!(
            page(list(&["a"]), &PageAsk::default()).json(),
            r#"{"object":"list","data":[{"id":"a"}],"first_id":"a","last_id":"a","has_more":false}"#
        );
        assert_eq!(
            ItemPage::default().json(),
            r#"{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}"#
        );
    }
}
