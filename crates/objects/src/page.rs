//! A page of a list, by its vendors' cursors: how its rows are read from wherever they lie, and cut. Knows no store.

use crate::ItemRecord;
use crate::items::{list_bytes, push_list};

/// In which order a list is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// The newest first.
    #[default]
    Descending,
    /// The oldest first.
    Ascending,
}

/// Which page is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageAsk {
    /// Items, from 1 on.
    pub limit: usize,
    /// In which order.
    pub order: Order,
    /// The id of the item that the page comes behind.
    pub after: Option<String>,
    /// The id of the item that the page ends before.
    pub before: Option<String>,
}

/// The most items of a page of items; of other lists callers may be told of more.
pub const MOST_ITEMS: usize = 100;
/// The most rows of any page.
pub const MOST_ROWS: usize = 10_000;

impl Default for PageAsk {
    fn default() -> Self {
        Self { limit: 20, order: Order::default(), after: None, before: None }
    }
}

impl PageAsk {
    /// The id of the item beside which the page lies.
    pub fn cursor(&self) -> Option<&str> {
        self.before.as_deref().or(self.after.as_deref())
    }

    /// In which order rows are read from the cursor on. What ends before an item is read from that item back.
    pub fn reads(&self) -> Order {
        match (self.order, &self.before) {
            (order, None) => order,
            (Order::Descending, Some(_)) => Order::Ascending,
            (Order::Ascending, Some(_)) => Order::Descending,
        }
    }

    /// How many rows are read: one more than the page has, to see whether more follow.
    pub fn rows(&self) -> usize {
        self.limit.clamp(1, MOST_ROWS) + 1
    }

    /// The page of rows that were read so, in its order, and whether more follow.
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

/// A page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// Its items.
    pub items: Vec<ItemRecord>,
    /// Whether more follow.
    pub has_more: bool,
}

/// The page of a list that is here whole, oldest first. Beside an item that is not in it lies nothing; of several with one id the oldest
/// is meant.
pub fn page(mut items: Vec<ItemRecord>, ask: &PageAsk) -> Page {
    if let Some(cursor) = ask.cursor() {
        match (items.iter().position(|item| item.id == cursor), ask.reads()) {
            (Some(at), Order::Ascending) => drop(items.drain(..=at)),
            (Some(at), Order::Descending) => items.truncate(at),
            (None, _) => items.clear(),
        }
    }
    if ask.reads() == Order::Descending {
        items.reverse();
    }
    items.truncate(ask.rows());
    let (items, has_more) = ask.cut(items);
    Page { items, has_more }
}

impl Page {
    /// `{"object":"list","data":[…],"first_id":…,"last_id":…,"has_more":…}`
    pub fn json(&self) -> String {
        let id = |item: Option<&ItemRecord>| serde_json::json!(item.map(|item| &item.id)).to_string();
        let tail = format!(
            ",\"first_id\":{},\"last_id\":{},\"has_more\":{}}}",
            id(self.items.first()),
            id(self.items.last()),
            self.has_more
        );
        // Pages can be long: each byte is written once, into memory that does not grow.
        let mut json = String::with_capacity(HEAD.len() + list_bytes(&self.items) + tail.len());
        json.push_str(HEAD);
        push_list(&mut json, &self.items);
        json.push_str(&tail);
        json
    }
}

/// What a page's JSON begins with.
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
        for (order, expected) in
            [(Order::Ascending, all.to_vec()), (Order::Descending, all.iter().rev().copied().collect())]
        {
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
        // Two items of one id: the older one is meant, whichever way the list is read.
        for (order, expected) in [(Order::Ascending, vec!["b", "a", "c"]), (Order::Descending, vec![])] {
            let ask = PageAsk { limit: 5, order, after: Some("a".to_owned()), ..PageAsk::default() };
            let page = page(list(&["a", "b", "a", "c"]), &ask);
            assert_eq!(page.items.iter().map(|item| item.id.as_str()).collect::<Vec<_>>(), expected);
        }
        let behind = page(list(&all), &PageAsk { after: Some("x".to_owned()), ..PageAsk::default() });
        assert_eq!(behind, Page::default());
        assert_eq!(
            page(list(&["a"]), &PageAsk::default()).json(),
            r#"{"object":"list","data":[{"id":"a"}],"first_id":"a","last_id":"a","has_more":false}"#
        );
        assert_eq!(
            Page::default().json(),
            r#"{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}"#
        );
    }
}
