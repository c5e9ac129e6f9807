//! The radix tree over token ids: which prefixes are computed, who holds them, and when they were last used.

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

/// A run of tokens after its parent's tokens.
#[derive(Debug)]
pub(super) struct Node {
    /// `None` for the root of an adapter set.
    pub(super) parent: Option<NodeId>,
    /// Root of the adapter set that the tokens are computed with. It differs from the parent's where the adapter set of a text
    /// changes.
    pub(super) adapter_root: NodeId,
    /// By the root of their adapter set and their first token.
    pub(super) children: BTreeMap<(NodeId, Token), NodeId>,
    /// Children in the device cache, unordered: at most as many as there are ids, however many are in the host cache alone.
    pub(super) device_children: Vec<NodeId>,
    pub(super) tokens: Vec<Token>,
    /// Hashes of the blocks that end in this node.
    pub(super) blocks: BlockHashes,
    /// In a root: the number of nodes that are computed with its adapter set.
    n_with_adapters: u32,
    /// Number of tokens before this node.
    pub(super) start: u32,
    /// Ids whose paths end here.
    pub(super) tips: Vec<KvSeqId>,
    /// Number of ids whose paths end here or below. If it is not 0, the node is in the device cache.
    pub(super) n_holders: u32,
    /// Number of those ids whose path is pinned because a sequence runs on it.
    pub(super) n_running: u32,
    /// Number of pins that end here or below.
    pub(super) n_pins: u32,
    /// Number of preempted sequences that end here or below.
    pub(super) n_reserved: u32,
    /// The host cache entry that the node can be reloaded from.
    pub(super) host_entry: Option<Arc<HostEntry>>,
    pub(super) n_hits: u64,
    /// The request that computed or used it last.
    pub(super) provenance: Option<Provenance>,
    pub(super) last_used: u64,
    /// Key of this node among the droppable host cache entries.
    pub(super) drop_key: Option<DropKey>,
}

/// Order in which host cache entries are dropped: copies of tokens that are in the device cache, then entries that no sequence
/// waits for, then entries of preempted sequences; within a class, the least recently used first.
pub(super) type DropKey = (u8, u64);

impl Node {
    pub(super) fn end(&self) -> u32 {
        self.start + length(&self.tokens)
    }

    pub(super) fn is_on_device(&self) -> bool {
        self.n_holders > 0
    }

    pub(super) fn is_host_only(&self) -> bool {
        self.host_entry.is_some() && !self.is_on_device()
    }
}

/// The part of a text that is in the tree: the nodes that it contains whole, from the root down, and the node that it ends in
/// or leaves.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) nodes: Vec<NodeId>,
    /// The node that the text ends in or leaves, and the number of its tokens in the text: at least one, and not all.
    pub(super) partial: Option<(NodeId, u32)>,
}

/// Unused roots are removed only when there are at least this many roots.
const MIN_ROOTS: usize = 16;

/// The nodes of all adapter sets.
#[derive(Debug, Default)]
pub(super) struct PrefixTree {
    nodes: Vec<Option<Node>>,
    free: Vec<usize>,
    roots: BTreeMap<AdapterSet, NodeId>,
    /// The adapter set of each root.
    adapter_sets: BTreeMap<NodeId, AdapterSet>,
    /// All nodes except roots, in the order of their last use.
    recent: BTreeSet<(u64, NodeId)>,
    /// Number of roots at which unused ones are removed before another is added.
    n_roots_at_cleanup: usize,
    /// Tokens that texts had in common with nodes, summed over all walks: the cost of the matches.
    n_compared: Cell<u64>,
}

impl PrefixTree {
    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("an id is released with its node")
    }

    /// Returns whether the node still exists.
    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.nodes[id.0].is_some()
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("an id is released with its node")
    }

    /// Number of tokens that texts were compared with since the start.
    pub(super) fn n_compared(&self) -> u64 {
        self.n_compared.get()
    }

    /// Every node; a parent may come after its children.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(index, node)| Some((NodeId(index), node.as_ref()?)))
    }

    /// Number of indices that are used by nodes, or were.
    pub(super) fn n_indices(&self) -> usize {
        self.nodes.len()
    }

    /// The node with this index, if it exists.
    pub(super) fn at_index(&self, index: usize) -> Option<NodeId> {
        self.nodes[index].as_ref().map(|_| NodeId(index))
    }

    pub(super) fn roots(&self) -> impl Iterator<Item = NodeId> {
        self.roots.values().copied()
    }

    pub(super) fn adapter_set(&self, root: NodeId) -> &AdapterSet {
        self.adapter_sets.get(&root).expect("it is a root")
    }

    /// Number of nodes below the roots.
    pub(super) fn n_below_roots(&self) -> usize {
        self.recent.len()
    }

    /// Nodes below the roots, the most recently used first.
    pub(super) fn most_recent(&self) -> impl Iterator<Item = NodeId> {
        self.recent.iter().rev().inspect(|_| visit_counter::count_visited(1)).map(|&(_, id)| id)
    }

    /// Sets the time at which `id` was last used.
    pub(super) fn set_last_used(&mut self, id: NodeId, now: u64) {
        let node = self.node_mut(id);
        let before = std::mem::replace(&mut node.last_used, now);
        if node.parent.is_some() && before != now {
            self.recent.remove(&(before, id));
            self.recent.insert((now, id));
        }
    }

    /// Returns the root of `adapter_root`; adds it if it does not exist.
    pub(super) fn root(&mut self, adapter_set: &AdapterSet) -> NodeId {
        if let Some(&root) = self.roots.get(adapter_set) {
            return root;
        }
        if self.roots.len() >= self.n_roots_at_cleanup.max(MIN_ROOTS) {
            self.remove_unused_roots();
            // The next clean-up waits until the number of roots has doubled: the amortized cost of a root is constant.
            self.n_roots_at_cleanup = 2 * self.roots.len();
        }
        let root = self.add(None, None, Vec::new(), 0);
        self.roots.insert(adapter_set.clone(), root);
        self.adapter_sets.insert(root, adapter_set.clone());
        root
    }

    /// Removes roots that hold nothing and whose adapter set no node is computed with.
    fn remove_unused_roots(&mut self) {
        let (nodes, free, adapter_sets) = (&mut self.nodes, &mut self.free, &mut self.adapter_sets);
        self.roots.retain(|_, &mut NodeId(index)| {
            let root = nodes[index].as_ref().expect("an id is released with its node");
            let holds_nothing = root.children.is_empty() && root.tips.is_empty() && root.n_pins == 0 && root.n_reserved == 0;
            let is_unused = holds_nothing && root.n_with_adapters == 0;
            if is_unused {
                nodes[index] = None;
                free.push(index);
                adapter_sets.remove(&NodeId(index));
            }
            !is_unused
        });
    }

    /// Adds a root, or a node that is computed with the adapter set of the root `adapter_root`.
    fn add(&mut self, parent: Option<NodeId>, adapter_root: Option<NodeId>, tokens: Vec<Token>, start: u32) -> NodeId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        let node = Node {
            parent,
            adapter_root: adapter_root.unwrap_or(NodeId(index)),
            children: BTreeMap::new(),
            device_children: Vec::new(),
            tokens,
            blocks: BlockHashes::default(),
            n_with_adapters: 0,
            start,
            tips: Vec::new(),
            n_holders: 0,
            n_running: 0,
            n_pins: 0,
            n_reserved: 0,
            host_entry: None,
            n_hits: 0,
            provenance: None,
            last_used: 0,
            drop_key: None,
        };
        self.nodes[index] = Some(node);
        if let Some(root) = adapter_root {
            self.node_mut(root).n_with_adapters += 1;
        }
        if parent.is_some() {
            self.recent.insert((0, NodeId(index)));
        }
        NodeId(index)
    }

    /// Adds a leaf below `parent`, which has no child with the same adapter set and first token. Its tokens were computed with the
    /// adapter set of `adapter_root`.
    pub(super) fn add_child(&mut self, parent: NodeId, adapter_root: NodeId, tokens: Vec<Token>) -> NodeId {
        let start = self.node(parent).end();
        let first = tokens[0];
        let child = self.add(Some(parent), Some(adapter_root), tokens, start);
        let replaced = self.node_mut(parent).children.insert((adapter_root, first), child);
        debug_assert!(replaced.is_none(), "the parent has no such child yet");
        child
    }

    /// Follows `tokens`, which are computed with `adapters`, from their root to the last node that they reach.
    pub(super) fn walk(&self, adapters: &AdapterSchedule, mut tokens: &[Token]) -> Walk {
        let mut walk = Walk { nodes: Vec::new(), partial: None };
        let root_at = |position| self.roots.get(adapters.at(position)).copied();
        let Some(root) = root_at(0) else { return walk };
        walk.nodes.push(root);
        let (mut at, mut adapter_root) = (root, Some(root));
        let child_of = |at: NodeId, adapter_root: Option<NodeId>, first: Option<&Token>| {
            self.node(at).children.get(&(adapter_root?, *first?)).copied()
        };
        while let Some(child) = child_of(at, adapter_root, tokens.first()) {
            let node = self.node(child);
            let n = common_prefix(&node.tokens, tokens).min(adapters.n_unchanged(node.start));
            self.n_compared.set(self.n_compared.get() + u64::from(n));
            if (n as usize) < node.tokens.len() {
                walk.partial = Some((child, n));
                break;
            }
            tokens = &tokens[n as usize..];
            walk.nodes.push(child);
            at = child;
            if adapters.change() == Some(node.end()) {
                adapter_root = root_at(node.end());
            }
        }
        walk
    }

    /// Splits `id` after its first `n` tokens and returns the upper part; the lower part keeps the id, the tips and the
    /// children. The host cache entry stays with the lower part: the caller decides whether the upper part shares it.
    pub(super) fn split(&mut self, id: NodeId, n: u32) -> NodeId {
        let node = self.node_mut(id);
        debug_assert!(n > 0 && (n as usize) < node.tokens.len(), "neither part is empty");
        let tokens = cut_front(&mut node.tokens, n as usize);
        let (parent, start) = (node.parent.expect("a root is never split"), node.start);
        let adapter_root = node.adapter_root;
        let blocks = node.blocks.cut_front(start, n);
        node.start += n;
        let first_of_lower = node.tokens[0];
        let (n_holders, n_running) = (node.n_holders, node.n_running);
        let (n_pins, n_reserved) = (node.n_pins, node.n_reserved);
        let (n_hits, last_used, provenance) = (node.n_hits, node.last_used, node.provenance.clone());
        let first = tokens[0];
        let upper = self.add(Some(parent), Some(adapter_root), tokens, start);
        self.node_mut(id).parent = Some(upper);
        self.node_mut(parent).children.insert((adapter_root, first), upper);
        self.replace_device_child(parent, id, upper);
        let node = self.node_mut(upper);
        node.children.insert((adapter_root, first_of_lower), id);
        node.device_children.extend((n_holders > 0).then_some(id));
        node.blocks = blocks;
        (node.n_holders, node.n_running) = (n_holders, n_running);
        (node.n_pins, node.n_reserved) = (n_pins, n_reserved);
        (node.n_hits, node.provenance) = (n_hits, provenance);
        self.set_last_used(upper, last_used);
        upper
    }

    /// Removes a node that has no child.
    pub(super) fn remove(&mut self, id: NodeId) {
        let node = self.nodes[id.0].take().expect("a node is removed once");
        debug_assert!(node.children.is_empty() && node.tips.is_empty(), "a removed node is empty");
        self.free.push(id.0);
        self.recent.remove(&(node.last_used, id));
        if let Some(parent) = node.parent {
            self.node_mut(parent).children.remove(&(node.adapter_root, node.tokens[0]));
            self.node_mut(node.adapter_root).n_with_adapters -= 1;
        }
    }

    /// Joins `id` with its only child, which has the same adapter set. The child keeps its id.
    pub(super) fn join_with_child(&mut self, id: NodeId) {
        let node = self.nodes[id.0].take().expect("a node is joined once");
        self.free.push(id.0);
        self.recent.remove(&(node.last_used, id));
        let (&_, &child) = node.children.first_key_value().expect("it has a child");
        let parent = node.parent.expect("a root is never joined");
        let first = node.tokens[0];
        let lower = self.node_mut(child);
        debug_assert_eq!(lower.adapter_root, node.adapter_root, "joined nodes have the same adapter set");
        let mut tokens = node.tokens;
        tokens.append(&mut lower.tokens);
        lower.tokens = tokens;
        lower.blocks.join(node.blocks);
        lower.start = node.start;
        lower.parent = Some(parent);
        // Every hit on the lower part was a hit on the upper part too.
        lower.n_hits = node.n_hits;
        self.node_mut(parent).children.insert((node.adapter_root, first), child);
        self.node_mut(node.adapter_root).n_with_adapters -= 1;
        self.replace_device_child(parent, id, child);
    }

    fn replace_device_child(&mut self, parent: NodeId, old: NodeId, new: NodeId) {
        if let Some(child) = self.node_mut(parent).device_children.iter_mut().find(|child| **child == old) {
            *child = new;
        }
    }

    /// Iterates over `id` and its ancestors, up to the root.
    pub(super) fn upwards(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(id), |&id| self.node(id).parent).inspect(|_| visit_counter::count_visited(1))
    }

    /// Returns whether `below` is `above` or a descendant of it.
    pub(super) fn is_within(&self, below: NodeId, above: NodeId) -> bool {
        let start = self.node(above).start;
        // A root and its children both start at 0.
        self.upwards(below).take_while(|&at| self.node(at).start >= start).any(|at| at == above)
    }

    /// Applies `change` to `id` and its ancestors.
    pub(super) fn change_upwards(&mut self, id: NodeId, mut change: impl FnMut(&mut Node)) {
        let mut at = Some(id);
        while let Some(id) = at {
            visit_counter::count_visited(1);
            let node = self.node_mut(id);
            change(node);
            at = node.parent;
        }
    }

    pub(super) fn tokens_to(&self, id: NodeId) -> Vec<Token> {
        let mut parts: Vec<NodeId> = self.upwards(id).collect();
        parts.reverse();
        parts.into_iter().flat_map(|id| self.node(id).tokens.iter().copied()).collect()
    }

    /// All nodes, parents before their children.
    pub(super) fn in_order(&self) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = self.roots().collect();
        let mut at = 0;
        while at < order.len() {
            order.extend(self.node(order[at]).children.values().copied());
            at += 1;
        }
        order
    }

    /// Compares every count and link with a recount and panics if one differs. `is_running` reports whether a sequence runs on
    /// an id.
    pub(super) fn check_integrity(&self, pins: &[NodeId], is_running: impl Fn(KvSeqId) -> bool) {
        let order = self.in_order();
        assert_eq!(order.len() + self.free.len(), self.nodes.len(), "every node is in the tree or free");
        let mut counts: BTreeMap<NodeId, (u32, u32, u32)> = BTreeMap::new();
        for &id in order.iter().rev() {
            let node = self.node(id);
            let running = node.tips.iter().filter(|&&tip| is_running(tip)).count();
            let pinned = pins.iter().filter(|&&pin| pin == id).count();
            let number = |n: usize| u32::try_from(n).expect("counts fit into 32 bits");
            let mut sum = (number(node.tips.len()), number(running), number(pinned));
            for (key, child) in &node.children {
                let (holders, running, pins) = counts[child];
                sum = (sum.0 + holders, sum.1 + running, sum.2 + pins);
                let child = self.node(*child);
                let key_of_child = (child.adapter_root, child.tokens[0]);
                assert_eq!((child.parent, child.start, key_of_child), (Some(id), node.end(), *key), "a child's links");
            }
            assert_eq!((node.n_holders, node.n_running, node.n_pins), sum, "counts of {id:?}");
            let mut device_children: Vec<NodeId> = node.device_children.clone();
            device_children.sort_unstable();
            let mut on_device: Vec<NodeId> = node.children.values().copied().filter(|&id| self.node(id).is_on_device()).collect();
            on_device.sort_unstable();
            assert_eq!(device_children, on_device, "children of {id:?} in the device cache");
            assert_eq!(node.tokens.is_empty(), node.parent.is_none(), "only a root is empty");
            assert!(self.roots.values().any(|&root| root == node.adapter_root), "{id:?} refers to a root");
            if node.parent.is_none() {
                let n_nodes = order.iter().filter(|&&at| at != id && self.node(at).adapter_root == id).count();
                assert_eq!(node.n_with_adapters, number(n_nodes), "nodes with the adapter set of {id:?}");
            }
            let is_empty = node.children.is_empty() && node.tips.is_empty() && node.host_entry.is_none();
            assert!(!is_empty || node.parent.is_none() || node.n_pins + node.n_reserved > 0, "{id:?} is empty");
            counts.insert(id, sum);
        }
        let recent = order.iter().filter(|&&id| self.node(id).parent.is_some()).map(|&id| (self.node(id).last_used, id));
        assert_eq!(recent.collect::<BTreeSet<_>>(), self.recent, "an entry for each node below a root");
        let adapter_sets: BTreeMap<NodeId, AdapterSet> = self.roots.iter().map(|(set, &root)| (root, set.clone())).collect();
        assert_eq!(adapter_sets, self.adapter_sets, "an adapter set for each root");
    }
}

/// Removes the first `n` tokens of `all` and returns them. The shorter part is copied into an allocation of its size, so that
/// neither a short prefix nor a short rest costs the time or keeps the memory of a long run.
fn cut_front(all: &mut Vec<Token>, n: usize) -> Vec<Token> {
    if n < all.len() / 2 {
        return all.drain(..n).collect();
    }
    let rest = all.split_off(n);
    std::mem::replace(all, rest)
}

/// Length of the longest common prefix of `a` and `b`.
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

    fn base() -> AdapterSchedule {
        AdapterSchedule::default()
    }

    fn tree(texts: &[&[Token]]) -> PrefixTree {
        let mut tree = PrefixTree::default();
        for text in texts {
            let root = tree.root(&AdapterSet::default());
            let Walk { nodes, partial } = tree.walk(&base(), text);
            let mut at = partial.map_or_else(|| *nodes.last().unwrap_or(&root), |(node, n)| tree.split(node, n));
            let n = tree.node(at).end() as usize;
            if n < text.len() {
                at = tree.add_child(at, root, text[n..].to_vec());
            }
            tree.node_mut(at).n_reserved += 1;
        }
        tree
    }

    #[test]
    fn a_common_prefix_becomes_one_node() {
        let tree = tree(&[&[1, 2, 3, 4], &[1, 2, 9]]);
        let Walk { nodes, partial } = tree.walk(&base(), &[1, 2, 3, 7]);
        assert_eq!(nodes.iter().map(|&id| tree.node(id).end()).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(partial.map(|(id, n)| (tree.node(id).tokens.clone(), n)), Some((vec![3, 4], 1)));
        assert_eq!(tree.in_order().len(), 4);
        tree.check_integrity(&[], |_| false);
    }

    #[test]
    fn splitting_and_joining_preserve_tokens_and_hit_counts() {
        let mut tree = tree(&[&[1, 2, 3, 4]]);
        let Walk { nodes, .. } = tree.walk(&base(), &[1, 2, 3, 4]);
        let node = nodes[1];
        let upper = tree.split(node, 3);
        assert_eq!((tree.tokens_to(upper), tree.tokens_to(node)), (vec![1, 2, 3], vec![1, 2, 3, 4]));
        tree.node_mut(upper).n_hits = 2;
        tree.join_with_child(upper);
        assert_eq!((&tree.node(node).tokens[..], tree.node(node).n_hits), (&[1, 2, 3, 4][..], 2));
        tree.check_integrity(&[], |_| false);
    }

    #[test]
    fn texts_with_different_adapters_share_no_nodes() {
        let tree = tree(&[&[1, 2, 3, 4]]);
        let adapted = AdapterSet::with_adapters([(3, 0.5)]);
        assert!(tree.walk(&adapted.into(), &[1, 2, 3]).nodes.is_empty());
    }

    #[test]
    fn a_text_shares_the_prefix_before_its_adapters_change() {
        let mut tree = tree(&[&[1, 2, 3, 4]]);
        let adapted = AdapterSet::with_adapters([(3, 0.5)]);
        let changing = AdapterSchedule::changing(AdapterSet::default(), 2, adapted.clone());
        let Walk { nodes, partial } = tree.walk(&changing, &[1, 2, 3, 4]);
        assert_eq!((nodes.len(), partial.map(|(_, n)| n)), (1, Some(2)), "the rest has another adapter set");

        let upper = tree.split(partial.unwrap().0, 2);
        let root = tree.root(&adapted);
        let child = tree.add_child(upper, root, vec![3, 4]);
        tree.node_mut(child).n_reserved += 1;
        let ends = |adapters: &AdapterSchedule| tree.walk(adapters, &[1, 2, 3, 4]).nodes.last().copied();
        assert_eq!(ends(&changing), Some(child));
        assert_ne!(ends(&base()), Some(child));
        assert_eq!(ends(&adapted.into()), Some(root), "another adapter set from the start");
        tree.check_integrity(&[], |_| false);
    }

    #[test]
    fn roots_of_unused_adapter_sets_are_removed() {
        let mut tree = tree(&[&[1, 2, 3, 4]]);
        let root_of_base = tree.root(&AdapterSet::default());
        let with = |scale: u16| AdapterSet::with_adapters([(0, f32::from(scale))]);
        // This root stays in use, below the root of another adapter set.
        let lasting = tree.root(&with(1));
        let above = *tree.walk(&base(), &[1, 2, 3, 4]).nodes.last().unwrap();
        let child = tree.add_child(above, lasting, vec![5, 6]);
        tree.node_mut(child).n_reserved += 1;
        for scale in 2..2_000 {
            let root = tree.root(&with(scale));
            let unused = tree.add_child(root, root, vec![1, 2, 3]);
            tree.remove(unused);
            assert!(tree.roots().count() <= MIN_ROOTS, "{} roots", tree.roots().count());
        }
        assert!(tree.nodes.len() < 2 * MIN_ROOTS, "{} nodes", tree.nodes.len());
        assert_eq!([tree.root(&AdapterSet::default()), tree.root(&with(1))], [root_of_base, lasting]);
        tree.check_integrity(&[], |_| false);
    }
}
