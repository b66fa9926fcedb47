//! A counter over a sliding window of time, in slots. Time is an argument.

/// Counts events over the last `N` slots of time.
#[derive(Debug)]
pub(crate) struct SlidingCounter<const N: usize> {
    slot_ns: u64,
    slots: [TimeSlot; N],
}

#[derive(Debug, Clone, Copy)]
struct TimeSlot {
    /// Index of the slot's time, counted from the clock's start.
    number: u64,
    count: u64,
}

impl<const N: usize> SlidingCounter<N> {
    /// Creates an empty window with slots of this length.
    pub(crate) const fn new(slot_ns: u64) -> Self {
        Self { slot_ns, slots: [TimeSlot { number: 0, count: 0 }; N] }
    }

    /// Counts `count` events.
    pub(crate) fn add(&mut self, now_ns: u64, count: u64) {
        let number = now_ns / self.slot_ns;
        let Ok(at) = usize::try_from(number % N as u64) else { return };
        let Some(slot) = self.slots.get_mut(at) else { return };
        if slot.number != number {
            *slot = TimeSlot { number, count: 0 };
        }
        slot.count = slot.count.saturating_add(count);
    }

    /// Number of events in the last `span_ns`, at most in the whole window. The oldest slot counts in proportion to its
    /// part within the span.
    pub(crate) fn within(&self, now_ns: u64, span_ns: u64) -> f64 {
        let from_ns = now_ns.saturating_sub(span_ns);
        let (oldest, newest) = (from_ns / self.slot_ns, now_ns / self.slot_ns);
        // The slot before the window's first slot has been reused.
        let oldest = oldest.max((newest + 1).saturating_sub(N as u64));
        let part = 1.0 - (from_ns % self.slot_ns) as f64 / self.slot_ns as f64;
        let share = |slot: &TimeSlot| match slot.number {
            number if number > newest || number < oldest => 0.0,
            number if number == from_ns / self.slot_ns && number != newest => slot.count as f64 * part,
            _ => slot.count as f64,
        };
        self.slots.iter().map(share).sum()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.slot_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_the_span_or_the_window_does_not_count() {
        let mut window = SlidingCounter::<4>::new(10);
        for (now, count) in [(5, 1), (12, 2), (25, 4), (39, 8)] {
            window.add(now, count);
        }
        for (now, span, expected) in [
            (39, 0, 8.0),
            (39, 9, 8.0),
            (39, 14, 4.0 * 0.5 + 8.0),
            (39, 39, 15.0),
            (39, 1000, 15.0),
            (45, 45, 14.0),
            (65, 30, 8.0 * 0.5),
            (69, 30, 8.0 * 0.1),
            (1000, 40, 0.0),
        ] {
            let within = window.within(now, span);
            assert!((within - expected).abs() < 1e-9, "{now} {span}: {within}, not {expected}");
        }
        // The slot is reused.
        window.add(47, 16);
        assert!((window.within(47, 37) - 30.0).abs() < 1e-9);
        window.clear();
        assert!(window.within(47, 40).abs() < 1e-9);
    }
}
