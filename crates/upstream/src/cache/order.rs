//! The order of events by number: which event is next, which is a repetition, and where some are missing. Must not know
//! a connection.

/// The events processed on one connection.
#[derive(Debug, Default)]
pub(super) struct EventOrder {
    /// The number after the last processed event. `None` if no event was processed.
    next: Option<u64>,
    /// The number of the last live event.
    live: Option<u64>,
}

/// How an event's number relates to the processed events.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventPosition {
    /// The event was already processed.
    Known,
    /// The event directly follows the processed ones.
    Follows,
    /// Earlier events were missed.
    Missed {
        /// The first missed number. 0 if the server restarted, or if no event was processed yet.
        from: u64,
    },
}

impl EventOrder {
    /// Classifies a live event. On one connection, numbers only grow, unless the server restarts.
    pub(super) fn live(&mut self, number: u64) -> EventPosition {
        let back = self.live.is_some_and(|live| number <= live);
        self.live = Some(number);
        match self.next {
            Some(next) if !back && number == next => EventPosition::Follows,
            Some(next) if !back && number < next => EventPosition::Known,
            Some(next) if !back => EventPosition::Missed { from: next },
            _ => {
                self.next = None;
                EventPosition::Missed { from: 0 }
            }
        }
    }

    /// Records that an event was processed.
    pub(super) fn taken(&mut self, number: u64) {
        self.next = Some(number.saturating_add(1));
    }

    /// Records that no event was published so far, so the first one will have number 0.
    pub(super) fn begin(&mut self) {
        self.next = Some(0);
    }

    /// Returns whether an event was processed.
    pub(super) fn has(&self, number: u64) -> bool {
        self.next.is_some_and(|next| number < next)
    }

    /// Returns whether any event was processed, or the start was recorded.
    pub(super) fn has_begun(&self) -> bool {
        self.next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_repeats_and_new_lives_are_told_apart() {
        let mut order = EventOrder::default();
        assert_eq!(order.live(0), EventPosition::Missed { from: 0 }, "nothing is known before the first");
        order.taken(0);
        assert_eq!(order.live(1), EventPosition::Follows);
        order.taken(1);
        assert_eq!(order.live(4), EventPosition::Missed { from: 2 });
        for number in 2..=7 {
            order.taken(number);
        }
        assert!(order.has(7) && !order.has(8));
        // The live events waited during the replay and now repeat it.
        for number in 5..=7 {
            assert_eq!(order.live(number), EventPosition::Known);
        }
        assert_eq!(order.live(8), EventPosition::Follows);
        order.taken(8);
        assert_eq!(
            order.live(8),
            EventPosition::Missed { from: 0 },
            "a number does not come twice in one life"
        );
        assert!(!order.has_begun());
        order.taken(8);
        assert_eq!(order.live(0), EventPosition::Missed { from: 0 });
        let mut order = EventOrder::default();
        order.begin();
        assert_eq!(order.live(0), EventPosition::Follows);
        assert_eq!(order.live(u64::MAX), EventPosition::Missed { from: 0 });
    }
}
