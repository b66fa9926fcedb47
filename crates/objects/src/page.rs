//! A page of a list: OpenAI's cursors. Knows no store.

use crate::ItemRecord;

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
    /// Items, 1 to 100.
    pub limit: usize,
    /// In which order.
    pub order: Order,
    /// The id of the item that the page comes behind.
    pub after: Option<String>,
}

/// The most items of a page.
pub const MOST_ITEMS: usize = 100;

impl Default for PageAsk {
    fn default() -> Self {
        Self { limit: 20, order: Order::default(), after: None }
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

/// The page of a list that is here whole, oldest first. Behind an item that is not in it comes nothing.
pub fn page(items: Vec<ItemRecord>, ask: &PageAsk) -> Page {
    let mut items = items;
    if ask.order == Order::Descending {
        items.reverse();
    }
    if let Some(after) = &ask.after {
        let at = items.iter().position(|item| item.id == *after).map_or(items.len(), |at| at + 1);
        items.drain(..at);
    }
    let limit = ask.limit.clamp(1, MOST_ITEMS);
    let has_more = items.len() > limit;
    items.truncate(limit);
    Page { items, has_more }
}

impl Page {
    /// `{"object":"list","data":[…],"first_id":…,"last_id":…,"has_more":…}`
    pub fn json(&self) -> String {
        let id = |item: Option<&ItemRecord>| serde_json::json!(item.map(|item| &item.id)).to_string();
        let data: Vec<&str> = self.items.iter().map(|item| item.json.as_str()).collect();
        format!(
            "{{\"object\":\"list\",\"data\":[{}],\"first_id\":{},\"last_id\":{},\"has_more\":{}}}",
            data.join(","),
            id(self.items.first()),
            id(self.items.last()),
            self.has_more
        )
    }
}

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
                let page = page(list(&all), &PageAsk { limit: 2, order, after });
                seen.extend(page.items.iter().map(|item| item.id.clone()));
                after = page.items.last().map(|item| item.id.clone());
                if !page.has_more {
                    break;
                }
            }
            assert_eq!(seen, expected);
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
