//! The numbers of events: which one follows, which was told before, and where some are missing. Knows no connection.

/// What was taken in on one connection.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The number that follows what was taken in; `None`: nothing was.
    next: Option<u64>,
    /// The last one that came by itself.
    live: Option<u64>,
}

/// What a number says of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It was taken in already.
    Known,
    /// It follows what was taken in.
    Follows,
    /// What stands before it was not: all from this number on.
    Missed {
        /// 0 where it is of another life of the server.
        from: u64,
    },
}

impl Order {
    /// An event came by itself. On one connection their numbers only grow, unless the server began anew.
    pub(super) fn live(&mut self, number: u64) -> Next {
        let back = self.live.is_some_and(|live| number <= live);
        self.live = Some(number);
        match self.next {
            Some(next) if !back && number == next => Next::Follows,
            Some(next) if !back && number < next => Next::Known,
            Some(next) if !back => Next::Missed { from: next },
            _ => {
                self.next = None;
                Next::Missed { from: 0 }
            }
        }
    }

    /// An event was taken in.
    pub(super) fn taken(&mut self, number: u64) {
        self.next = Some(number.saturating_add(1));
    }

    /// Nothing was told so far, and the first event will be number 0.
    pub(super) fn begin(&mut self) {
        self.next = Some(0);
    }

    /// Whether an event was taken in.
    pub(super) fn has(&self, number: u64) -> bool {
        self.next.is_some_and(|next| number < next)
    }

    /// Whether anything was.
    pub(super) fn has_begun(&self) -> bool {
        self.next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_repeats_and_new_lives_are_told_apart() {
        let mut order = Order::default();
        assert_eq!(order.live(0), Next::Missed { from: 0 }, "nothing is known before the first");
        order.taken(0);
        assert_eq!(order.live(1), Next::Follows);
        order.taken(1);
        assert_eq!(order.live(4), Next::Missed { from: 2 });
        for number in 2..=7 {
            order.taken(number);
        }
        assert!(order.has(7) && !order.has(8));
        // They came again, and waited while they were.
        for number in 5..=7 {
            assert_eq!(order.live(number), Next::Known);
        }
        assert_eq!(order.live(8), Next::Follows);
        order.taken(8);
        assert_eq!(order.live(8), Next::Missed { from: 0 }, "a number does not come twice in one life");
        assert!(!order.has_begun());
        order.taken(8);
        assert_eq!(order.live(0), Next::Missed { from: 0 });
        let mut order = Order::default();
        order.begin();
        assert_eq!(order.live(0), Next::Follows);
        assert_eq!(order.live(u64::MAX), Next::Missed { from: 0 });
    }
}
