//! The radix tree over token ids: which prefixes are computed, and when they were last used.

mod holders;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cache::blocks::BlockHashes;
use crate::cache::host_cache::HostEntry;
use crate::cache::{AdapterSchedule, AdapterSet, KvSeqId, Provenance, visit_counter};
use crate::request::Token;

/// Id of a node; after a split the lower half keeps its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(usize);

/// Paths through a node are recorded once, as `tips` and `device_children`.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) parent: Option<NodeId>,
    /// Adapters of its tokens; different from the parent's where the adapter set of a sequence changes.
    pub(super) adapters: AdapterSet,
    pub(super) children: BTreeMap<(Token, AdapterSet), NodeId>,
    /// Children that a path passes: at most as many as there are ids, unordered.
    pub(super) device_children: Vec<NodeId>,
    pub(super) tokens: Vec<Token>,
    pub(super) blocks: BlockHashes,
    pub(super) start: u32,
    /// Ids whose paths end here.
    pub(super) tips: Vec<KvSeqId>,
    /// Number of pins that end here or below.
    pub(super) n_pins: u32,
    /// Number of preempted sequences that end here or below.
    pub(super) n_reserved: u32,
    pub(super) host_entry: Option<Arc<HostEntry>>,
    pub(super) n_hits: u64,
    pub(super) provenance: Option<Provenance>,
    pub(super) last_used: u64,
    pub(super) drop_key: Option<DropKey>,
}

/// Order in which host cache entries are dropped: copies of the device cache, entries that no sequence waits for, entries of
/// preempted sequences; within a class by last use.
pub(super) type DropKey = (u8, u64);

impl Node {
    pub(super) fn end(&self) -> u32 {
        self.start + length(&self.tokens)
    }

    /// Returns true if a path ends here or below.
    pub(super) fn is_on_device(&self) -> bool {
        !self.tips.is_empty() || !self.device_children.is_empty()
    }

    pub(super) fn is_host_only(&self) -> bool {
        self.host_entry.is_some() && !self.is_on_device()
    }

    /// Key among the children of the parent.
    fn key(&self) -> (Token, AdapterSet) {
        (self.tokens[0], self.adapters.clone())
    }
}

#[derive(Debug)]
pub(super) struct TreeMatch {
    /// Nodes that the tokens contain completely, from the root down.
    pub(super) nodes: Vec<NodeId>,
    /// Last node, if the tokens contain only a part of it, and the length of that part: at least one token.
    pub(super) partial: Option<(NodeId, u32)>,
}

#[derive(Debug, Default)]
pub(super) struct PrefixTree {
    nodes: Vec<Option<Node>>,
    free: Vec<usize>,
    roots: BTreeMap<AdapterSet, NodeId>,
    /// All nodes except roots, in the order of their last use.
    recent: BTreeSet<(u64, NodeId)>,
    n_compared: Cell<u64>,
}

impl PrefixTree {
    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("an id is released with its node")
    }

    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.nodes[id.0].is_some()
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("an id is released with its node")
    }

    pub(super) fn n_compared(&self) -> u64 {
        self.n_compared.get()
    }

    pub(super) fn n_indices(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn at_index(&self, index: usize) -> Option<NodeId> {
        self.nodes[index].as_ref().map(|_| NodeId(index))
    }

    pub(super) fn n_below_roots(&self) -> usize {
        self.recent.len()
    }

    /// Nodes below the roots, the most recently used first.
    pub(super) fn most_recent(&self) -> impl Iterator<Item = NodeId> {
        self.recent.iter().rev().inspect(|_| visit_counter::count_visited(1)).map(|&(_, id)| id)
    }

    pub(super) fn set_last_used(&mut self, id: NodeId, now: u64) {
        let node = self.node_mut(id);
        let before = std::mem::replace(&mut node.last_used, now);
        if node.parent.is_some() && before != now {
            self.recent.remove(&(before, id));
            self.recent.insert((now, id));
        }
    }

    /// Returns the root of `adapters`; adds it if it does not exist.
    pub(super) fn root(&mut self, adapters: &AdapterSet) -> NodeId {
        let root = self.roots.get(adapters).copied();
        root.unwrap_or_else(|| self.add(Node { adapters: adapters.clone(), ..Node::default() }))
    }

    fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.free.pop().unwrap_or(self.nodes.len()));
        let replaced = match node.parent {
            Some(parent) => {
                self.recent.insert((node.last_used, id));
                self.node_mut(parent).children.insert(node.key(), id)
            }
            None => self.roots.insert(node.adapters.clone(), id),
        };
        debug_assert!(replaced.is_none_or(|child| node.children.values().any(|&below| below == child)), "a key has one child");
        if id.0 == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[id.0] = Some(node);
        id
    }

    pub(super) fn add_child(&mut self, parent: NodeId, adapters: AdapterSet, tokens: Vec<Token>) -> NodeId {
        let start = self.node(parent).end();
        self.add(Node { parent: Some(parent), adapters, tokens, start, ..Node::default() })
    }

    pub(super) fn child(&self, id: NodeId, adapters: &AdapterSchedule, first: Token) -> Option<NodeId> {
        let node = self.node(id);
        node.children.get(&(first, adapters.at(node.end()).clone())).copied()
    }

    pub(super) fn match_tokens(&self, adapters: &AdapterSchedule, mut tokens: &[Token]) -> TreeMatch {
        let mut tree_match = TreeMatch { nodes: Vec::new(), partial: None };
        let Some(&root) = self.roots.get(adapters.at(0)) else { return tree_match };
        tree_match.nodes.push(root);
        let mut parent = root;
        while let Some(child) = tokens.first().and_then(|&first| self.child(parent, adapters, first)) {
            let node = self.node(child);
            let n = common_prefix(&node.tokens, tokens).min(adapters.n_unchanged(node.start));
            self.n_compared.set(self.n_compared.get() + u64::from(n));
            if (n as usize) < node.tokens.len() {
                tree_match.partial = Some((child, n));
                break;
            }
            tokens = &tokens[n as usize..];
            tree_match.nodes.push(child);
            parent = child;
        }
        tree_match
    }

    /// Splits `id` after `n` tokens; returns the upper part. The lower one keeps id, tips, children and host cache entry.
    pub(super) fn split(&mut self, id: NodeId, n: u32) -> NodeId {
        let node = self.node_mut(id);
        debug_assert!(n > 0 && (n as usize) < node.tokens.len(), "neither part is empty");
        let parent = node.parent.expect("a root is never split");
        let tokens = cut_front(&mut node.tokens, n as usize);
        let upper = Node {
            parent: Some(parent),
            adapters: node.adapters.clone(),
            children: BTreeMap::from([(node.key(), id)]),
            device_children: node.is_on_device().then_some(id).into_iter().collect(),
            tokens,
            blocks: node.blocks.cut_front(node.start, n),
            start: node.start,
            n_pins: node.n_pins,
            n_reserved: node.n_reserved,
            n_hits: node.n_hits,
            provenance: node.provenance.clone(),
            last_used: node.last_used,
            ..Node::default()
        };
        node.start += n;
        let upper = self.add(upper);
        self.node_mut(id).parent = Some(upper);
        self.replace_device_child(parent, id, upper);
        upper
    }

    fn take(&mut self, id: NodeId) -> Node {
        let node = self.nodes[id.0].take().expect("a node is removed once");
        self.free.push(id.0);
        self.recent.remove(&(node.last_used, id));
        node
    }

    pub(super) fn remove(&mut self, id: NodeId) {
        let node = self.take(id);
        debug_assert!(node.children.is_empty() && !node.is_on_device(), "a removed node is empty");
        match node.parent {
            Some(parent) => self.node_mut(parent).children.remove(&node.key()),
            None => self.roots.remove(&node.adapters),
        };
    }

    /// Joins `id` with its only child, which keeps its id.
    pub(super) fn join_with_child(&mut self, id: NodeId) {
        let node = self.take(id);
        let key = node.key();
        let (_, &child) = node.children.first_key_value().expect("it has a child");
        let parent = node.parent.expect("a root is never joined");
        let lower = self.node_mut(child);
        debug_assert_eq!(lower.adapters, node.adapters, "joined nodes have the same adapters");
        let mut tokens = node.tokens;
        tokens.append(&mut lower.tokens);
        lower.tokens = tokens;
        lower.blocks.join(node.blocks);
        lower.start = node.start;
        lower.parent = Some(parent);
        // Every hit on the lower part was a hit on the upper part too.
        lower.n_hits = node.n_hits;
        self.node_mut(parent).children.insert(key, child);
        self.replace_device_child(parent, id, child);
    }

    fn replace_device_child(&mut self, parent: NodeId, old: NodeId, new: NodeId) {
        if let Some(child) = self.node_mut(parent).device_children.iter_mut().find(|child| **child == old) {
            *child = new;
        }
    }

    pub(super) fn upwards(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(id), |&id| self.node(id).parent).inspect(|_| visit_counter::count_visited(1))
    }

    /// Returns true if `below` is `above` or a descendant of it.
    pub(super) fn is_within(&self, below: NodeId, above: NodeId) -> bool {
        let start = self.node(above).start;
        // A root and its children both start at 0.
        self.upwards(below).take_while(|&node| self.node(node).start >= start).any(|node| node == above)
    }

    pub(super) fn change_upwards(&mut self, id: NodeId, mut change: impl FnMut(&mut Node)) {
        let mut next = Some(id);
        while let Some(id) = next {
            visit_counter::count_visited(1);
            let node = self.node_mut(id);
            change(node);
            next = node.parent;
        }
    }

    pub(super) fn tokens_to(&self, id: NodeId) -> Vec<Token> {
        let mut parts: Vec<NodeId> = self.upwards(id).collect();
        parts.reverse();
        parts.into_iter().flat_map(|id| self.node(id).tokens.iter().copied()).collect()
    }

    /// All nodes, parents before their children.
    pub(super) fn in_order(&self) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = self.roots.values().copied().collect();
        let mut index = 0;
        while index < order.len() {
            order.extend(self.node(order[index]).children.values().copied());
            index += 1;
        }
        order
    }
}

/// Removes the first `n` tokens and returns them. The shorter part is copied: neither costs the time or memory of a long run.
fn cut_front(all: &mut Vec<Token>, n: usize) -> Vec<Token> {
    if n < all.len() / 2 {
        return all.drain(..n).collect();
    }
    let rest = all.split_off(n);
    std::mem::replace(all, rest)
}

pub(crate) fn common_prefix(a: &[Token], b: &[Token]) -> u32 {
    let n = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    u32::try_from(n).expect("a context is shorter than 2³² tokens")
}

pub(super) fn length(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).expect("a context is shorter than 2³² tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    impl PrefixTree {
        /// Every node; a parent may come after its children.
        pub(in crate::cache) fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
            self.nodes.iter().enumerate().filter_map(|(index, node)| Some((NodeId(index), node.as_ref()?)))
        }

        pub(in crate::cache) fn check_integrity(&self, pins: &[NodeId]) {
            let order = self.in_order();
            assert_eq!(order.len() + self.free.len(), self.nodes.len(), "every node is in the tree or free");
            let mut n_pins: BTreeMap<NodeId, usize> = BTreeMap::new();
            for &id in order.iter().rev() {
                let node = self.node(id);
                let mut n_pins_here = pins.iter().filter(|&&pin| pin == id).count();
                for (key, child) in &node.children {
                    n_pins_here += n_pins[child];
                    let child = self.node(*child);
                    assert_eq!((child.parent, child.start, child.key()), (Some(id), node.end(), key.clone()), "a child's links");
                    assert!(child.last_used <= node.last_used, "a child of {id:?} is used with it");
                }
                assert_eq!(node.n_pins as usize, n_pins_here, "pins of {id:?}");
                n_pins.insert(id, n_pins_here);
                let device_children: BTreeSet<NodeId> = node.device_children.iter().copied().collect();
                assert_eq!(device_children.len(), node.device_children.len(), "each child of {id:?} is listed once");
                let on_device = node.children.values().copied().filter(|&id| self.node(id).is_on_device());
                assert_eq!(device_children, on_device.collect(), "children of {id:?} in the device cache");
                assert_eq!(node.tokens.is_empty(), node.parent.is_none(), "only a root is empty");
                assert!(
                    node.parent.is_some() || self.roots.get(&node.adapters) == Some(&id),
                    "{id:?} is the root of its adapters"
                );
                let is_empty = node.children.is_empty() && node.tips.is_empty() && node.host_entry.is_none();
                assert!(!is_empty || node.n_pins + node.n_reserved > 0, "{id:?} is empty");
            }
            let recent = order.iter().filter(|&&id| self.node(id).parent.is_some()).map(|&id| (self.node(id).last_used, id));
            assert_eq!(recent.collect::<BTreeSet<_>>(), self.recent, "an entry for each node below a root");
        }
    }

    fn base() -> AdapterSchedule {
        AdapterSchedule::default()
    }

    fn tree(texts: &[&[Token]]) -> PrefixTree {
        let mut tree = PrefixTree::default();
        for text in texts {
            let root = tree.root(&AdapterSet::default());
            let TreeMatch { nodes, partial } = tree.match_tokens(&base(), text);
            let mut node = partial.map_or_else(|| *nodes.last().unwrap_or(&root), |(node, n)| tree.split(node, n));
            let n = tree.node(node).end() as usize;
            if n < text.len() {
                node = tree.add_child(node, AdapterSet::default(), text[n..].to_vec());
            }
            tree.node_mut(node).n_reserved += 1;
        }
        tree
    }

    #[test]
    fn a_common_prefix_becomes_one_node() {
        let tree = tree(&[&[1, 2, 3, 4], &[1, 2, 9]]);
        let TreeMatch { nodes, partial } = tree.match_tokens(&base(), &[1, 2, 3, 7]);
        assert_eq!(nodes.iter().map(|&id| tree.node(id).end()).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(partial.map(|(id, n)| (tree.node(id).tokens.clone(), n)), Some((vec![3, 4], 1)));
        assert_eq!(tree.in_order().len(), 4);
        tree.check_integrity(&[]);
    }

    #[test]
    fn splitting_and_joining_preserve_tokens_and_hit_counts() {
        let mut tree = tree(&[&[1, 2, 3, 4]]);
        let TreeMatch { nodes, .. } = tree.match_tokens(&base(), &[1, 2, 3, 4]);
        let node = nodes[1];
        let upper = tree.split(node, 3);
        assert_eq!((tree.tokens_to(upper), tree.tokens_to(node)), (vec![1, 2, 3], vec![1, 2, 3, 4]));
        tree.node_mut(upper).n_hits = 2;
        tree.join_with_child(upper);
        assert_eq!((&tree.node(node).tokens[..], tree.node(node).n_hits), (&[1, 2, 3, 4][..], 2));
        tree.check_integrity(&[]);
    }

    #[test]
    fn texts_with_different_adapters_share_no_nodes() {
        let tree = tree(&[&[1, 2, 3, 4]]);
        let adapted = AdapterSet::with_adapters([(3, 0.5)]);
        assert!(tree.match_tokens(&adapted.into(), &[1, 2, 3]).nodes.is_empty());
    }

    #[test]
    fn a_text_shares_the_prefix_before_its_adapters_change() {
        let mut tree = tree(&[&[1, 2, 3, 4]]);
        let adapted = AdapterSet::with_adapters([(3, 0.5)]);
        let changing = AdapterSchedule::changing(AdapterSet::default(), 2, adapted.clone());
        let TreeMatch { nodes, partial } = tree.match_tokens(&changing, &[1, 2, 3, 4]);
        assert_eq!((nodes.len(), partial.map(|(_, n)| n)), (1, Some(2)), "the rest has another adapter set");

        let upper = tree.split(partial.unwrap().0, 2);
        let root = tree.root(&adapted);
        tree.node_mut(root).n_reserved += 1;
        let child = tree.add_child(upper, adapted.clone(), vec![3, 4]);
        tree.node_mut(child).n_reserved += 1;
        let ends = |adapters: &AdapterSchedule| tree.match_tokens(adapters, &[1, 2, 3, 4]).nodes.last().copied();
        assert_eq!(ends(&changing), Some(child));
        assert_ne!(ends(&base()), Some(child));
        assert_eq!(ends(&adapted.into()), Some(root), "another adapter set from the start");
        tree.check_integrity(&[]);
    }
}
