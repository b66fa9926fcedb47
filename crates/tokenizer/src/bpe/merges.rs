//! The merges of a byte-pair vocabulary as a table of pairs, and the algorithm that merges a word. It always merges the
//! pair of lowest rank, and of equal ranks the leftmost, until no pair merges. Must not know how a word becomes
//! symbols.

/// The rank of a pair that does not merge.
pub(super) const NONE: u32 = 0xff_ffff;
/// Ids fit in 20 bits and ranks in 24, so that a pair and its rank fit in 64 bits.
const ID_BITS: u32 = 20;
const RANK_BITS: u32 = 24;
/// An empty slot. Its ids would be the highest of all, which [`Merges::new`] refuses.
const EMPTY: u64 = u64::MAX;
/// The longest word, in symbols, that is merged in fixed arrays. Longer words use the tree.
pub(super) const SHORT: usize = 128;
/// The number of bits of a position in such a word.
const SHORT_BITS: u32 = 7;
const UNMERGED: i32 = i32::MAX;

/// Maps pairs to ranks by open addressing, and ranks to the ids that they make.
#[derive(Debug)]
pub(super) struct Merges {
    /// Left id, right id and rank, from the highest bit down.
    slots: Vec<u64>,
    shift: u32,
    products: Vec<u32>,
}

impl Merges {
    /// Builds a table of `(left, right, product)` in the order of ranks. If a pair occurs twice, its later rank counts.
    /// Returns `None` if the ids or ranks do not fit.
    pub(super) fn new(rows: &[(u32, u32, u32)]) -> Option<Self> {
        let highest = rows.iter().map(|(left, right, product)| left.max(right).max(product)).max().copied();
        if rows.len() >= NONE as usize || highest.unwrap_or(0) >= (1 << ID_BITS) - 1 {
            return None;
        }
        let bits = (rows.len().max(8) * 2).next_power_of_two().trailing_zeros();
        let mut merges = Self {
            slots: vec![EMPTY; 1 << bits],
            shift: u64::BITS - bits,
            products: rows.iter().map(|(_, _, product)| *product).collect(),
        };
        for (rank, (left, right, _)) in (0u64..).zip(rows) {
            let pair = key(*left, *right);
            let mask = merges.slots.len() - 1;
            let mut at = merges.home(pair);
            while let Some(slot) = merges.slots.get_mut(at) {
                if *slot == EMPTY || *slot >> RANK_BITS == pair {
                    *slot = pair << RANK_BITS | rank;
                    break;
                }
                at = (at + 1) & mask;
            }
        }
        Some(merges)
    }

    /// Returns the rank of the pair, or [`NONE`].
    #[inline]
    pub(super) fn rank(&self, left: u32, right: u32) -> u32 {
        let pair = key(left, right);
        let mask = self.slots.len() - 1;
        let mut at = self.home(pair);
        // At most half of the slots are taken, so the loop ends.
        while let Some(slot) = self.slots.get(at) {
            if *slot >> RANK_BITS == pair {
                return (*slot & u64::from(NONE)) as u32;
            }
            if *slot == EMPTY {
                break;
            }
            at = (at + 1) & mask;
        }
        NONE
    }

    /// Returns the id that the merge of `rank` makes.
    #[inline]
    fn product(&self, rank: u32) -> u32 {
        self.products.get(rank as usize).copied().unwrap_or(0)
    }

    #[inline]
    fn home(&self, pair: u64) -> usize {
        (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }
}

#[inline]
fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << ID_BITS | u64::from(right)
}

/// Buffers for merging, reused for every word of a text.
#[derive(Debug)]
pub(super) struct Scratch {
    symbols: [u32; SHORT],
    /// For each symbol, the rank of its pair with the next symbol, above its position. [`UNMERGED`] if the pair does
    /// not merge. The type is signed because vector instructions compare signed numbers best.
    keys: [i32; SHORT],
    next: [u8; SHORT],
    before: [u8; SHORT],
    /// The symbols of a long word.
    pub(super) long: Vec<u32>,
    tree: Tree,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self {
            symbols: [0; SHORT],
            keys: [UNMERGED; SHORT],
            next: [0; SHORT],
            before: [0; SHORT],
            long: Vec::new(),
            tree: Tree::default(),
        }
    }

    /// Merges a word of at most [`SHORT`] symbols and appends the remaining symbols. `rank` returns the rank of a pair
    /// by its position and its symbols.
    #[inline]
    pub(super) fn merge_short(
        &mut self,
        merges: &Merges,
        symbols: impl ExactSizeIterator<Item = u32>,
        rank: impl Fn(usize, u32, u32) -> u32,
        ids: &mut Vec<u32>,
    ) {
        let mut len = 0usize;
        let mut last = 0;
        for symbol in symbols.take(SHORT) {
            if let Some(before) = len.checked_sub(1) {
                put(&mut self.keys, before, short_key(rank(before, last, symbol), before));
            }
            put(&mut self.symbols, len, symbol);
            put(&mut self.next, len, (len + 1) as u8);
            put(&mut self.before, len, len.wrapping_sub(1) as u8);
            last = symbol;
            len += 1;
        }
        let Some(pairs) = len.checked_sub(1) else { return };
        // The keys are compared eight at a time.
        let padded = pairs.next_multiple_of(8);
        if let Some(rest) = self.keys.get_mut(pairs..padded) {
            rest.fill(UNMERGED);
        }
        self.run_short(merges, len, padded);
        let mut at = 0;
        while at < len {
            ids.push(get(&self.symbols, at));
            at = usize::from(get(&self.next, at));
        }
    }

    #[inline]
    fn run_short(&mut self, merges: &Merges, len: usize, padded: usize) {
        loop {
            let best = lowest(self.keys.get(..padded).unwrap_or_default());
            if best == UNMERGED {
                return;
            }
            let at = best as usize & (SHORT - 1);
            let product = merges.product((best >> SHORT_BITS) as u32);
            let gone = usize::from(get(&self.next, at));
            let after = usize::from(get(&self.next, gone));
            put(&mut self.symbols, at, product);
            put(&mut self.next, at, after as u8);
            put(&mut self.keys, gone, UNMERGED);
            let mut right = UNMERGED;
            if after < len {
                put(&mut self.before, after, at as u8);
                right = short_key(merges.rank(product, get(&self.symbols, after)), at);
            }
            put(&mut self.keys, at, right);
            if at > 0 {
                let before = usize::from(get(&self.before, at));
                let left = merges.rank(get(&self.symbols, before), product);
                put(&mut self.keys, before, short_key(left, before));
            }
        }
    }

    /// Merges the word in `long`, of any length `n`, in time O(n log n), and appends the remaining symbols.
    pub(super) fn merge_long(&mut self, merges: &Merges, ids: &mut Vec<u32>) {
        let symbols = &mut self.long;
        let ranks = symbols.windows(2).map(|pair| match pair {
            [left, right] => merges.rank(*left, *right),
            _ => NONE,
        });
        self.tree.fill(ranks, symbols.len());
        while let Some((at, rank)) = self.tree.lowest() {
            let product = merges.product(rank);
            let gone = self.tree.next(at);
            let after = self.tree.next(gone);
            if let Some(symbol) = symbols.get_mut(at) {
                *symbol = product;
            }
            self.tree.set(gone, NONE);
            self.tree.unlink(at, after);
            let right = symbols.get(after).map_or(NONE, |right| merges.rank(product, *right));
            self.tree.set(at, right);
            if at > 0 {
                let before = self.tree.before(at);
                let left = symbols.get(before).map_or(NONE, |left| merges.rank(*left, product));
                self.tree.set(before, left);
            }
        }
        let mut at = 0;
        while let Some(symbol) = symbols.get(at) {
            ids.push(*symbol);
            at = self.tree.next(at).max(at + 1);
        }
        symbols.clear();
    }
}

#[inline(always)]
fn get<T: Copy + Default>(array: &[T; SHORT], at: usize) -> T {
    array.get(at & (SHORT - 1)).copied().unwrap_or_default()
}

#[inline(always)]
fn put<T>(array: &mut [T; SHORT], at: usize, value: T) {
    if let Some(slot) = array.get_mut(at & (SHORT - 1)) {
        *slot = value;
    }
}

#[inline(always)]
fn short_key(rank: u32, at: usize) -> i32 {
    if rank == NONE { UNMERGED } else { (rank << SHORT_BITS | at as u32) as i32 }
}

#[inline(always)]
fn lowest(keys: &[i32]) -> i32 {
    let mut lanes = [UNMERGED; 8];
    let (chunks, rest) = keys.as_chunks::<8>();
    for chunk in chunks {
        for (lane, key) in lanes.iter_mut().zip(chunk) {
            *lane = (*lane).min(*key);
        }
    }
    lanes.iter().chain(rest).copied().min().unwrap_or(UNMERGED)
}

/// The number of children of a tree node.
const FAN: usize = 16;

/// The ranks of a long word's pairs under a tree of minima, so that finding or changing the lowest takes a few steps.
/// Also holds the links between the remaining symbols.
#[derive(Debug, Default)]
struct Tree {
    /// The ranks, then the minimum of each [`FAN`] of them, and so on up to a single value.
    levels: Vec<Vec<u32>>,
    next: Vec<u32>,
    before: Vec<u32>,
}

impl Tree {
    fn fill(&mut self, ranks: impl Iterator<Item = u32>, symbols: usize) {
        let end = symbols as u32;
        self.next.clear();
        self.next.extend(1..=end);
        self.before.clear();
        self.before.extend((0..end).map(|at| at.saturating_sub(1)));
        self.levels.clear();
        let mut level: Vec<u32> = ranks.collect();
        loop {
            level.resize(level.len().max(1).next_multiple_of(FAN), NONE);
            let above: Vec<u32> = level.as_chunks::<FAN>().0.iter().map(least).collect();
            self.levels.push(level);
            if above.len() == 1 {
                self.levels.push(above);
                return;
            }
            level = above;
        }
    }

    /// Returns the position of the lowest rank (the leftmost of equals) and the rank.
    fn lowest(&self) -> Option<(usize, u32)> {
        let (top, below) = self.levels.split_last()?;
        let rank = top.first().copied().filter(|rank| *rank != NONE)?;
        let mut at = 0;
        for level in below.iter().rev() {
            let children = level.as_chunks::<FAN>().0.get(at)?;
            at = at * FAN + children.iter().position(|child| *child == rank)?;
        }
        Some((at, rank))
    }

    fn set(&mut self, mut at: usize, rank: u32) {
        let mut value = rank;
        for level in &mut self.levels {
            match level.get_mut(at) {
                Some(slot) if *slot != value => *slot = value,
                _ => return,
            }
            at /= FAN;
            if let Some(children) = level.as_chunks::<FAN>().0.get(at) {
                value = least(children);
            }
        }
    }

    fn next(&self, at: usize) -> usize {
        self.next.get(at).map_or(usize::MAX, |next| *next as usize)
    }

    fn before(&self, at: usize) -> usize {
        self.before.get(at).map_or(usize::MAX, |before| *before as usize)
    }

    /// Makes `after` the successor of `at`.
    fn unlink(&mut self, at: usize, after: usize) {
        if let Some(next) = self.next.get_mut(at) {
            *next = after as u32;
        }
        if let Some(before) = self.before.get_mut(after) {
            *before = at as u32;
        }
    }
}

fn least(children: &[u32; FAN]) -> u32 {
    children.iter().copied().min().unwrap_or(NONE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The textbook algorithm.
    fn naive(rows: &[(u32, u32, u32)], mut word: Vec<u32>) -> Vec<u32> {
        loop {
            let rank = |pair: &[u32]| rows.iter().rposition(|row| row.0 == pair[0] && row.1 == pair[1]);
            let best = word.windows(2).enumerate().filter_map(|(at, pair)| Some((rank(pair)?, at))).min();
            let Some((rank, at)) = best else { return word };
            word[at] = rows[rank].2;
            word.remove(at + 1);
        }
    }

    fn merged(rows: &[(u32, u32, u32)], word: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let merges = Merges::new(rows).unwrap();
        let mut scratch = Scratch::new();
        let (mut short, mut long) = (Vec::new(), Vec::new());
        // Data left behind by an earlier word must not matter.
        for _ in 0..2 {
            short.clear();
            long.clear();
            let rank = |_: usize, left: u32, right: u32| merges.rank(left, right);
            scratch.merge_short(&merges, word.iter().copied(), rank, &mut short);
            scratch.long.extend_from_slice(word);
            scratch.merge_long(&merges, &mut long);
        }
        (short, long)
    }

    proptest! {
        #[test]
        fn both_ways_merge_by_the_book(
            // Products may have lower ranks than the parts they are made of.
            rows in prop::collection::vec((0u32..9, 0u32..9, 3u32..9), 0..20),
            word in prop::collection::vec(0u32..3, 0..SHORT + 1),
        ) {
            let expected = naive(&rows, word.clone());
            let (short, long) = merged(&rows, &word);
            prop_assert_eq!(&short, &expected);
            prop_assert_eq!(&long, &expected);
        }
    }

    #[test]
    fn long_words_merge_by_the_book() {
        let rows = [(0, 0, 1), (1, 1, 2), (2, 2, 3), (1, 0, 4), (3, 0, 5)];
        for len in [0, 1, 2, 15, 16, 17, 255, 256, 257, 1000, 4097] {
            let word: Vec<u32> = (0..len).map(|at| u32::from(at % 97 == 96) * 6).collect();
            let merges = Merges::new(&rows).unwrap();
            let mut scratch = Scratch::new();
            scratch.long.clone_from(&word);
            let mut ids = Vec::new();
            scratch.merge_long(&merges, &mut ids);
            assert_eq!(ids, naive(&rows, word), "{len}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(Merges::new(&[(1, 2, (1 << ID_BITS) - 1)]).is_none());
        assert!(Merges::new(&[(1, 2, (1 << ID_BITS) - 2)]).is_some());
        assert_eq!(Merges::new(&[]).unwrap().rank(0, 0), NONE);
    }
}
