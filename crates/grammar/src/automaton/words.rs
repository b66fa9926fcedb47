//! A vocabulary reduced to what some states of an automaton tell apart. It is a trie over kinds of bytes, in which
//! thousands of words become one. Words with two neighbouring kinds that no state allows in sequence are left out.

use llguidance::toktrie::TokTrie;

use super::table::{DEAD, TransitionTable};
use crate::bounds::AUTOMATON_WORD_NODES;

/// The trie. Each node comes before its children.
pub(super) struct TokenTrie {
    nodes: Vec<TrieNode>,
    /// Ids by node, in the order of the nodes.
    ids: Vec<u32>,
    deepest: usize,
}

struct TrieNode {
    class: u8,
    depth: u32,
    /// Index after the last node below this one.
    end: u32,
    /// Index of the first of its ids.
    ids: u32,
}

impl TokenTrie {
    /// Builds the trie. Returns `None` if it has too many nodes.
    pub(super) fn of(trie: &TokTrie, table: &TransitionTable, kinds: &[u8]) -> Option<Self> {
        let kind = |class: u8| kinds.get(usize::from(class)).copied().unwrap_or(class);
        let follows = FollowSets::of(table, kind);
        let mut growing = TrieBuilder { nodes: vec![BuilderNode::default()], ids: Vec::new() };
        let mut todo = vec![(trie.root(), 0u32)];
        while let Some((node, at)) = todo.pop() {
            let before = growing.nodes.get(at as usize).map(|grown| (at > 0).then_some(grown.class))?;
            for child in trie.node_children(node) {
                let class = kind(table.class(child.byte()));
                if !follows.may(before, class) {
                    continue;
                }
                let below = growing.child(at, class);
                if growing.nodes.len() > AUTOMATON_WORD_NODES {
                    return None;
                }
                if let Some(id) = child.token_id() {
                    growing.add(below, id);
                }
                todo.push((child, below));
            }
        }
        growing.laid_out()
    }

    /// Adds the ids that a state allows.
    pub(super) fn allowed(&self, table: &TransitionTable, state: u32, mask: &mut [u32]) {
        let mut states = vec![state; self.deepest + 1];
        let mut at = 0;
        while let Some(node) = self.nodes.get(at) {
            let depth = node.depth as usize;
            let before = states.get(depth - 1).copied().unwrap_or(DEAD);
            let next = table.next_by_class(before, node.class);
            if next == DEAD {
                at = node.end as usize;
                continue;
            }
            if let Some(state) = states.get_mut(depth) {
                *state = next;
            }
            at += 1;
            let end = self.nodes.get(at).map_or(self.ids.len(), |node| node.ids as usize);
            let ids = self.ids.get(node.ids as usize..end).unwrap_or_default();
            ids.iter().for_each(|id| allow(mask, *id));
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<TrieNode>() + self.ids.len() * 4
    }
}

pub(super) fn allow(mask: &mut [u32], id: u32) {
    if let Some(word) = mask.get_mut(id as usize / 32) {
        *word |= 1 << (id % 32);
    }
}

/// Which kinds may follow which, in any state.
struct FollowSets {
    any: [u64; 4],
    behind: Vec<[u64; 4]>,
}

impl FollowSets {
    fn of(table: &TransitionTable, kind: impl Fn(u8) -> u8) -> Self {
        let rows = || table.next.chunks_exact(table.classes);
        // The kinds that each state allows.
        let open: Vec<[u64; 4]> = rows()
            .map(|row| {
                let mut set = [0; 4];
                (0u8..)
                    .zip(row)
                    .filter(|(_, to)| **to != DEAD)
                    .for_each(|(class, _)| put(&mut set, kind(class)));
                set
            })
            .collect();
        let mut follows = Self { any: [0; 4], behind: vec![[0; 4]; table.classes] };
        for row in rows() {
            for (class, to) in (0u8..).zip(row) {
                if *to != DEAD {
                    put(&mut follows.any, kind(class));
                    let Some(behind) = follows.behind.get_mut(usize::from(kind(class))) else { continue };
                    let open = open.get(*to as usize).copied().unwrap_or_default();
                    behind.iter_mut().zip(open).for_each(|(set, open)| *set |= open);
                }
            }
        }
        follows
    }

    fn may(&self, before: Option<u8>, class: u8) -> bool {
        let set = before.map_or(Some(&self.any), |before| self.behind.get(usize::from(before)));
        let word = set.and_then(|set| set.get(usize::from(class / 64))).copied().unwrap_or_default();
        word >> (class % 64) & 1 == 1
    }
}

fn put(set: &mut [u64; 4], class: u8) {
    if let Some(word) = set.get_mut(usize::from(class / 64)) {
        *word |= 1 << (class % 64);
    }
}

/// The trie under construction. Index 0 means no node, except for the root, and no id.
struct TrieBuilder {
    nodes: Vec<BuilderNode>,
    /// Each id with the index of the previous one of its node, plus one.
    ids: Vec<(u32, u32)>,
}

#[derive(Default)]
struct BuilderNode {
    class: u8,
    first_child: u32,
    sibling: u32,
    last_id: u32,
}

impl TrieBuilder {
    fn child(&mut self, at: u32, class: u8) -> u32 {
        let first = self.nodes.get(at as usize).map_or(0, |node| node.first_child);
        let mut child = first;
        while let Some(node) = self.nodes.get(child as usize).filter(|_| child > 0) {
            if node.class == class {
                return child;
            }
            child = node.sibling;
        }
        let new = self.nodes.len() as u32;
        self.nodes.push(BuilderNode { class, sibling: first, ..BuilderNode::default() });
        if let Some(node) = self.nodes.get_mut(at as usize) {
            node.first_child = new;
        }
        new
    }

    fn add(&mut self, at: u32, id: u32) {
        if let Some(node) = self.nodes.get_mut(at as usize) {
            self.ids.push((id, node.last_id));
            node.last_id = self.ids.len() as u32;
        }
    }

    fn laid_out(self) -> Option<TokenTrie> {
        let mut words = TokenTrie { nodes: Vec::new(), ids: Vec::with_capacity(self.ids.len()), deepest: 0 };
        let mut open: Vec<usize> = Vec::new();
        let mut todo = vec![(self.nodes.first()?.first_child, 1u32)];
        while let Some((at, depth)) = todo.pop() {
            if at == 0 {
                continue;
            }
            let node = self.nodes.get(at as usize)?;
            words.close(&mut open, depth as usize - 1);
            open.push(words.nodes.len());
            let ids = words.ids.len() as u32;
            words.nodes.push(TrieNode { class: node.class, depth, end: 0, ids });
            words.deepest = words.deepest.max(depth as usize);
            let mut id = node.last_id;
            while let Some((this, before)) = (id as usize).checked_sub(1).and_then(|at| self.ids.get(at)) {
                words.ids.push(*this);
                id = *before;
            }
            todo.push((node.sibling, depth));
            todo.push((node.first_child, depth + 1));
        }
        words.close(&mut open, 0);
        Some(words)
    }
}

impl TokenTrie {
    /// Sets the end of the open nodes from `depth` on, whose children are all laid out.
    fn close(&mut self, open: &mut Vec<usize>, depth: usize) {
        let end = self.nodes.len() as u32;
        for at in open.drain(depth.min(open.len())..) {
            if let Some(node) = self.nodes.get_mut(at) {
                node.end = end;
            }
        }
    }
}
