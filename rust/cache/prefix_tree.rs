//! The radix tree over token ids: which prefixes are computed, who holds them, and when they were last used.

mod holders;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::cache::blocks::BlockHashes;
use crate::cache::host_cache::HostEntryId;
use crate::cache::{AdapterSchedule, AdapterSet, KvSeqId, Provenance, visit_counter};
use crate::request::Token;

/// Names a node; after a split the lower half keeps its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(usize);

/// A stretch of tokens after those of its parent.
#[derive(Debug)]
pub(super) struct Node {
    /// `None` for the root of a variant.
    pub(super) parent: Option<NodeId>,
    /// The root of the variant that its tokens are computed with. It is another one than that above where the variant of a text
    /// changes.
    pub(super) variant: NodeId,
    /// By their variants and their first tokens.
    pub(super) children: BTreeMap<(NodeId, Token), NodeId>,
    /// Those of them that are in the pool, in no order: as many as there are ids at most, whatever is stored beside them.
    pub(super) pooled: Vec<NodeId>,
    pub(super) tokens: Vec<Token>,
    /// Hashes of the blocks that end in it.
    pub(super) blocks: BlockHashes,
    /// Of a root, nodes that are computed with its variant.
    n_of_variant: u32,
    /// Tokens before it.
    pub(super) start: u32,
    /// The ids whose paths end here.
    pub(super) tips: Vec<KvSeqId>,
    /// Ids whose paths end here or below: where there is one, the node is in the pool.
    pub(super) n_holders: u32,
    /// Of these, ids whose path is pinned, because a sequence runs on it.
    pub(super) n_running: u32,
    /// Pins that end here or below.
    pub(super) n_pins: u32,
    /// Preempted sequences that end here or below.
    pub(super) n_reserved: u32,
    /// The saved piece that it can be restored from.
    pub(super) stored: Option<HostEntryId>,
    /// From which position on the saved piece holds what a sliding window sees.
    pub(super) whole_from: u32,
    pub(super) n_hits: u64,
    /// The request that computed or used it last.
    pub(super) maker: Option<Provenance>,
    pub(super) last_used: u64,
    /// Its entry among the pieces that can be dropped.
    pub(super) drop_key: Option<DropKey>,
}

/// Order in which saved pieces are dropped: copies of what is in the pool, then what nobody waits for, then what preempted
/// sequences left; within these, the least recently used first.
pub(super) type DropKey = (u8, u64);

impl Node {
    pub(super) fn end(&self) -> u32 {
        self.start + length(&self.tokens)
    }

    pub(super) fn is_in_pool(&self) -> bool {
        self.n_holders > 0
    }

    pub(super) fn is_host_only(&self) -> bool {
        self.stored.is_some() && !self.is_in_pool()
    }
}

/// How far a text is known: nodes that it contains whole, from the root on, and the one that it ends or leaves in the middle of.
#[derive(Debug)]
pub(super) struct Walk {
    pub(super) whole: Vec<NodeId>,
    /// That node and how many of its tokens are in the text, at least one and not all.
    pub(super) part: Option<(NodeId, u32)>,
}

/// Fewer roots than this are never sorted out.
const MIN_ROOTS: usize = 16;

/// The nodes of all variants.
#[derive(Debug, Default)]
pub(super) struct PrefixTree {
    nodes: Vec<Option<Node>>,
    free: Vec<usize>,
    roots: BTreeMap<AdapterSet, NodeId>,
    /// By its root, each variant.
    variants: BTreeMap<NodeId, AdapterSet>,
    /// All nodes but the roots, in the order in which they were last used.
    recent: BTreeSet<(u64, NodeId)>,
    /// From so many roots on, those that nothing needs are taken out before another is made.
    n_roots_to_sort_out: usize,
    /// Tokens that texts had in common with nodes, over all walks: what looking has cost.
    n_compared: Cell<u64>,
}

impl PrefixTree {
    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("a name is given up with its node")
    }

    /// Whether the name was not given up.
    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.nodes[id.0].is_some()
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("a name is given up with its node")
    }

    /// Tokens that texts were compared with, since the start.
    pub(super) fn n_compared(&self) -> u64 {
        self.n_compared.get()
    }

    /// Every node, parents not necessarily before their children.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(index, node)| Some((NodeId(index), node.as_ref()?)))
    }

    /// Places that nodes have, or had.
    pub(super) fn n_places(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a place, where there is one.
    pub(super) fn at_place(&self, index: usize) -> Option<NodeId> {
        self.nodes[index].as_ref().map(|_| NodeId(index))
    }

    pub(super) fn roots(&self) -> impl Iterator<Item = NodeId> {
        self.roots.values().copied()
    }

    /// The variant of this root.
    pub(super) fn variant(&self, root: NodeId) -> &AdapterSet {
        self.variants.get(&root).expect("it is a root")
    }

    /// Number of nodes below the roots.
    pub(super) fn n_below_roots(&self) -> usize {
        self.recent.len()
    }

    /// The nodes below the roots, the most recently used first.
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

    /// The root of `variant`, made where there is none.
    pub(super) fn root(&mut self, variant: &AdapterSet) -> NodeId {
        if let Some(&root) = self.roots.get(variant) {
            return root;
        }
        if self.roots.len() >= self.n_roots_to_sort_out.max(MIN_ROOTS) {
            self.sort_out_roots();
            // As many again must come before the next time: a root costs one look or two, however many there are.
            self.n_roots_to_sort_out = 2 * self.roots.len();
        }
        let root = self.add(None, None, Vec::new(), 0);
        self.roots.insert(variant.clone(), root);
        self.variants.insert(root, variant.clone());
        root
    }

    /// Takes out the roots that hold nothing, and whose variants no node is computed with.
    fn sort_out_roots(&mut self) {
        let (nodes, free, variants) = (&mut self.nodes, &mut self.free, &mut self.variants);
        self.roots.retain(|_, &mut NodeId(index)| {
            let root = nodes[index].as_ref().expect("a name is given up with its node");
            let holds_nothing = root.children.is_empty() && root.tips.is_empty() && root.n_pins == 0 && root.n_reserved == 0;
            let goes = holds_nothing && root.n_of_variant == 0;
            if goes {
                nodes[index] = None;
                free.push(index);
                variants.remove(&NodeId(index));
            }
            !goes
        });
    }

    /// A node of the variant of a root, or a root.
    fn add(&mut self, parent: Option<NodeId>, variant: Option<NodeId>, tokens: Vec<Token>, start: u32) -> NodeId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        let node = Node {
            parent,
            variant: variant.unwrap_or(NodeId(index)),
            children: BTreeMap::new(),
            pooled: Vec::new(),
            tokens,
            blocks: BlockHashes::default(),
            n_of_variant: 0,
            start,
            tips: Vec::new(),
            n_holders: 0,
            n_running: 0,
            n_pins: 0,
            n_reserved: 0,
            stored: None,
            whole_from: 0,
            n_hits: 0,
            maker: None,
            last_used: 0,
            drop_key: None,
        };
        self.nodes[index] = Some(node);
        if let Some(root) = variant {
            self.node_mut(root).n_of_variant += 1;
        }
        if parent.is_some() {
            self.recent.insert((0, NodeId(index)));
        }
        NodeId(index)
    }

    /// A new last stretch after `parent`, which has no child that begins as `tokens` do. It is computed with the variant of the root
    /// `variant`.
    pub(super) fn add_child(&mut self, parent: NodeId, variant: NodeId, tokens: Vec<Token>) -> NodeId {
        let start = self.node(parent).end();
        let first = tokens[0];
        let child = self.add(Some(parent), Some(variant), tokens, start);
        let known = self.node_mut(parent).children.insert((variant, first), child);
        debug_assert!(known.is_none(), "a child is followed, not replaced");
        child
    }

    /// Follows `tokens`, which are computed so, from a root as far as they are known.
    pub(super) fn walk(&self, variants: &AdapterSchedule, mut tokens: &[Token]) -> Walk {
        let mut walk = Walk { whole: Vec::new(), part: None };
        let root_at = |place| self.roots.get(variants.at(place)).copied();
        let Some(root) = root_at(0) else { return walk };
        walk.whole.push(root);
        let (mut at, mut variant) = (root, Some(root));
        let child_of = |at: NodeId, variant: Option<NodeId>, first: Option<&Token>| {
            self.node(at).children.get(&(variant?, *first?)).copied()
        };
        while let Some(child) = child_of(at, variant, tokens.first()) {
            let node = self.node(child);
            let n = common_prefix(&node.tokens, tokens).min(variants.n_alike(node.start));
            self.n_compared.set(self.n_compared.get() + u64::from(n));
            if (n as usize) < node.tokens.len() {
                walk.part = Some((child, n));
                break;
            }
            tokens = &tokens[n as usize..];
            walk.whole.push(child);
            at = child;
            if variants.change() == Some(node.end()) {
                variant = root_at(node.end());
            }
        }
        walk
    }

    /// Cuts `id` after its first `n` tokens and returns the upper part; the lower one keeps the name, the tips and what is below.
    /// What is stored of it stays with the lower part: the caller knows whether the upper one can have it too.
    pub(super) fn split(&mut self, id: NodeId, n: u32) -> NodeId {
        let node = self.node_mut(id);
        debug_assert!(n > 0 && (n as usize) < node.tokens.len(), "both parts hold something");
        let tokens = cut_front(&mut node.tokens, n as usize);
        let (parent, start) = (node.parent.expect("a root has no tokens to cut"), node.start);
        let variant = node.variant;
        let blocks = node.blocks.cut_front(start, n);
        node.start += n;
        let first_of_lower = node.tokens[0];
        let (n_holders, n_running) = (node.n_holders, node.n_running);
        let (n_pins, n_reserved) = (node.n_pins, node.n_reserved);
        let (n_hits, last_used, maker) = (node.n_hits, node.last_used, node.maker.clone());
        let first = tokens[0];
        let upper = self.add(Some(parent), Some(variant), tokens, start);
        self.node_mut(id).parent = Some(upper);
        self.node_mut(parent).children.insert((variant, first), upper);
        self.replace_pooled(parent, id, upper);
        let node = self.node_mut(upper);
        node.children.insert((variant, first_of_lower), id);
        node.pooled.extend((n_holders > 0).then_some(id));
        node.blocks = blocks;
        (node.n_holders, node.n_running) = (n_holders, n_running);
        (node.n_pins, node.n_reserved) = (n_pins, n_reserved);
        (node.n_hits, node.maker) = (n_hits, maker);
        self.set_last_used(upper, last_used);
        upper
    }

    /// Takes out a node that has no child.
    pub(super) fn remove(&mut self, id: NodeId) {
        let node = self.nodes[id.0].take().expect("a node is removed once");
        debug_assert!(node.children.is_empty() && node.tips.is_empty(), "what is removed holds nothing");
        self.free.push(id.0);
        self.recent.remove(&(node.last_used, id));
        if let Some(parent) = node.parent {
            self.node_mut(parent).children.remove(&(node.variant, node.tokens[0]));
            self.node_mut(node.variant).n_of_variant -= 1;
        }
    }

    /// Joins `id` with its only child, which is computed as it is and keeps its name.
    pub(super) fn join_with_child(&mut self, id: NodeId) {
        let node = self.nodes[id.0].take().expect("a node is joined once");
        self.free.push(id.0);
        self.recent.remove(&(node.last_used, id));
        let (&_, &child) = node.children.first_key_value().expect("it has a child");
        let parent = node.parent.expect("a root is never joined");
        let first = node.tokens[0];
        let lower = self.node_mut(child);
        debug_assert_eq!(lower.variant, node.variant, "one stretch is computed in one way");
        let mut tokens = node.tokens;
        tokens.append(&mut lower.tokens);
        lower.tokens = tokens;
        lower.blocks.join(node.blocks);
        lower.start = node.start;
        lower.parent = Some(parent);
        // Who has found the lower part has found the upper one too.
        lower.n_hits = node.n_hits;
        self.node_mut(parent).children.insert((node.variant, first), child);
        self.node_mut(node.variant).n_of_variant -= 1;
        self.replace_pooled(parent, id, child);
    }

    fn replace_pooled(&mut self, parent: NodeId, old: NodeId, new: NodeId) {
        if let Some(child) = self.node_mut(parent).pooled.iter_mut().find(|child| **child == old) {
            *child = new;
        }
    }

    /// `id` and everything above it, upwards.
    pub(super) fn upwards(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(id), |&id| self.node(id).parent).inspect(|_| visit_counter::count_visited(1))
    }

    /// Whether `below` is `above`, or somewhere below it.
    pub(super) fn is_within(&self, below: NodeId, above: NodeId) -> bool {
        let start = self.node(above).start;
        // A root and its children both begin at 0.
        self.upwards(below).take_while(|&at| self.node(at).start >= start).any(|at| at == above)
    }

    /// Changes `id` and everything above it.
    pub(super) fn change_upwards(&mut self, id: NodeId, mut change: impl FnMut(&mut Node)) {
        let mut at = Some(id);
        while let Some(id) = at {
            visit_counter::count_visited(1);
            let node = self.node_mut(id);
            change(node);
            at = node.parent;
        }
    }

    /// The tokens from the root to the end of `id`.
    pub(super) fn tokens_to(&self, id: NodeId) -> Vec<Token> {
        let mut parts: Vec<NodeId> = self.upwards(id).collect();
        parts.reverse();
        parts.into_iter().flat_map(|id| self.node(id).tokens.iter().copied()).collect()
    }

    /// Nodes, parents before their children.
    pub(super) fn in_order(&self) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = self.roots().collect();
        let mut at = 0;
        while at < order.len() {
            order.extend(self.node(order[at]).children.values().copied());
            at += 1;
        }
        order
    }

    /// Compares every count and link with one made anew; `is_running` says of each id whether a sequence runs on it.
    ///
    /// # Panics
    /// Where one differs.
    pub(super) fn check_integrity(&self, pins: &[NodeId], is_running: impl Fn(KvSeqId) -> bool) {
        let order = self.in_order();
        assert_eq!(order.len() + self.free.len(), self.nodes.len(), "every node is in the tree or free");
        let mut counted: BTreeMap<NodeId, (u32, u32, u32)> = BTreeMap::new();
        for &id in order.iter().rev() {
            let node = self.node(id);
            let running = node.tips.iter().filter(|&&tip| is_running(tip)).count();
            let pinned = pins.iter().filter(|&&pin| pin == id).count();
            let number = |n: usize| u32::try_from(n).expect("few");
            let mut sums = (number(node.tips.len()), number(running), number(pinned));
            for (key, child) in &node.children {
                let (holders, running, pins) = counted[child];
                sums = (sums.0 + holders, sums.1 + running, sums.2 + pins);
                let child = self.node(*child);
                let known_by = (child.variant, child.tokens[0]);
                assert_eq!((child.parent, child.start, known_by), (Some(id), node.end(), *key), "a child's links");
            }
            assert_eq!((node.n_holders, node.n_running, node.n_pins), sums, "counts of {id:?}");
            let mut pooled: Vec<NodeId> = node.pooled.clone();
            pooled.sort_unstable();
            let mut in_pool: Vec<NodeId> = node.children.values().copied().filter(|&id| self.node(id).is_in_pool()).collect();
            in_pool.sort_unstable();
            assert_eq!(pooled, in_pool, "children of {id:?} in the pool");
            assert_eq!(node.tokens.is_empty(), node.parent.is_none(), "only a root is empty");
            assert!(self.roots.values().any(|&root| root == node.variant), "{id:?} is of the variant of a root");
            if node.parent.is_none() {
                let n_alike = order.iter().filter(|&&at| at != id && self.node(at).variant == id).count();
                assert_eq!(node.n_of_variant, number(n_alike), "nodes of the variant of {id:?}");
            }
            let is_empty = node.children.is_empty() && node.tips.is_empty() && node.stored.is_none();
            assert!(!is_empty || node.parent.is_none() || node.n_pins + node.n_reserved > 0, "{id:?} holds nothing");
            counted.insert(id, sums);
        }
        let recent = order.iter().filter(|&&id| self.node(id).parent.is_some()).map(|&id| (self.node(id).last_used, id));
        assert_eq!(recent.collect::<BTreeSet<_>>(), self.recent, "an entry for each node below a root");
        let variants: BTreeMap<NodeId, AdapterSet> = self.roots.iter().map(|(variant, &root)| (root, variant.clone())).collect();
        assert_eq!(variants, self.variants, "a variant for each root");
    }
}

/// Takes the first `n` of `all`. The shorter part is copied: neither a short beginning nor a short end of a long stretch costs as
/// much as that is long, or goes on taking its memory.
fn cut_front(all: &mut Vec<Token>, n: usize) -> Vec<Token> {
    if n < all.len() / 2 {
        return all.drain(..n).collect();
    }
    let rest = all.split_off(n);
    std::mem::replace(all, rest)
}

/// How many tokens `a` and `b` begin with in common.
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
            let Walk { whole, part } = tree.walk(&base(), text);
            let mut at = part.map_or_else(|| *whole.last().unwrap_or(&root), |(node, n)| tree.split(node, n));
            let n = tree.node(at).end() as usize;
            if n < text.len() {
                at = tree.add_child(at, root, text[n..].to_vec());
            }
            tree.node_mut(at).n_reserved += 1;
        }
        tree
    }

    #[test]
    fn a_common_prefix_is_one_node() {
        let tree = tree(&[&[1, 2, 3, 4], &[1, 2, 9]]);
        let Walk { whole, part } = tree.walk(&base(), &[1, 2, 3, 7]);
        assert_eq!(whole.iter().map(|&id| tree.node(id).end()).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(part.map(|(id, n)| (tree.node(id).tokens.clone(), n)), Some((vec![3, 4], 1)));
        assert_eq!(tree.in_order().len(), 4);
        tree.check_integrity(&[], |_| false);
    }

    #[test]
    fn a_split_and_a_join_leave_the_same_text_and_how_often_it_was_found() {
        let mut tree = tree(&[&[1, 2, 3, 4]]);
        let Walk { whole, .. } = tree.walk(&base(), &[1, 2, 3, 4]);
        let node = whole[1];
        let upper = tree.split(node, 3);
        assert_eq!((tree.tokens_to(upper), tree.tokens_to(node)), (vec![1, 2, 3], vec![1, 2, 3, 4]));
        tree.node_mut(upper).n_hits = 2;
        tree.join_with_child(upper);
        assert_eq!((&tree.node(node).tokens[..], tree.node(node).n_hits), (&[1, 2, 3, 4][..], 2));
        tree.check_integrity(&[], |_| false);
    }

    #[test]
    fn variants_share_nothing() {
        let tree = tree(&[&[1, 2, 3, 4]]);
        let adapted = AdapterSet::with_adapters([(3, 0.5)]);
        assert!(tree.walk(&adapted.into(), &[1, 2, 3]).whole.is_empty());
    }

    #[test]
    fn a_text_whose_variant_changes_shares_what_is_before_that() {
        let mut tree = tree(&[&[1, 2, 3, 4]]);
        let adapted = AdapterSet::with_adapters([(3, 0.5)]);
        let changing = AdapterSchedule::changing(AdapterSet::default(), 2, adapted.clone());
        let Walk { whole, part } = tree.walk(&changing, &[1, 2, 3, 4]);
        assert_eq!((whole.len(), part.map(|(_, n)| n)), (1, Some(2)), "what follows is computed in another way");

        let upper = tree.split(part.unwrap().0, 2);
        let root = tree.root(&adapted);
        let child = tree.add_child(upper, root, vec![3, 4]);
        tree.node_mut(child).n_reserved += 1;
        let ends = |variants: &AdapterSchedule| tree.walk(variants, &[1, 2, 3, 4]).whole.last().copied();
        assert_eq!(ends(&changing), Some(child));
        assert_ne!(ends(&base()), Some(child));
        assert_eq!(ends(&adapted.into()), Some(root), "from its beginning on it is yet another text");
        tree.check_integrity(&[], |_| false);
    }

    #[test]
    fn roots_of_variants_that_nothing_is_computed_with_any_more_are_taken_out() {
        let mut tree = tree(&[&[1, 2, 3, 4]]);
        let root_of_base = tree.root(&AdapterSet::default());
        let with = |scale: u16| AdapterSet::with_adapters([(0, f32::from(scale))]);
        // One that stays, below the root of another variant.
        let lasting = tree.root(&with(1));
        let above = *tree.walk(&base(), &[1, 2, 3, 4]).whole.last().unwrap();
        let child = tree.add_child(above, lasting, vec![5, 6]);
        tree.node_mut(child).n_reserved += 1;
        for scale in 2..2_000 {
            let root = tree.root(&with(scale));
            let gone = tree.add_child(root, root, vec![1, 2, 3]);
            tree.remove(gone);
            assert!(tree.roots().count() <= MIN_ROOTS, "{} roots", tree.roots().count());
        }
        assert!(tree.nodes.len() < 2 * MIN_ROOTS, "{} nodes", tree.nodes.len());
        assert_eq!([tree.root(&AdapterSet::default()), tree.root(&with(1))], [root_of_base, lasting]);
        tree.check_integrity(&[], |_| false);
    }
}
