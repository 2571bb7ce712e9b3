//! The search for an order of one page's steps that explains all of them (Wing and Gong), with memory.
//!
//! A node is how far each thread has come and the state that the page is in. Steps of one thread keep their
//! order, so how far each has come says which steps were done. A step can be next if no step that is still to
//! come belongs to an operation that had returned before the step's own began. Nodes with equally many steps
//! done are a layer; layer by layer all nodes are found, each once. The labels that count are those on paths
//! to the last layer.

use super::super::program::MAX_THREADS;
use super::page::{Effect, Label, Labels, Page};
use std::collections::{HashMap, HashSet};

/// The slot of all steps that always do their work.
pub(super) const ALWAYS: usize = 0;

/// A step of an operation on the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageStep {
    /// The operation, by its place in the history.
    pub(super) event: usize,
    /// Its stamps.
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) effect: Effect,
    /// Which labels it may have.
    pub(super) slot: usize,
}

/// One page's steps by thread.
pub(super) type PageSteps = [Vec<PageStep>; MAX_THREADS];

/// The result of a search.
#[derive(Debug)]
pub(super) enum Found {
    /// There are orders; each of these labels is in one of them, by the number of the slot.
    Orders(HashSet<(usize, Label)>),
    /// There is none: these events could not be explained by the orders that came farthest.
    None(Vec<usize>),
    /// There were too many nodes.
    TooMany,
}

/// The most nodes that are searched.
const MOST_NODES: usize = 400_000;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Node {
    done: [u8; MAX_THREADS],
    page: Page,
}

/// A step from a node of one layer to a node of the next.
#[derive(Clone, Copy, Debug)]
struct Edge {
    from: u32,
    to: u32,
    slot: usize,
    label: Label,
}

/// The nodes of one layer, each once.
#[derive(Default)]
struct Layer {
    nodes: Vec<Node>,
    places: HashMap<Node, u32>,
}

impl Layer {
    /// Small layers are searched faster than hashed.
    const SMALL: usize = 8;

    fn place(&mut self, node: Node) -> u32 {
        let next = self.nodes.len() as u32;
        if self.nodes.len() < Self::SMALL {
            if let Some(place) = self.nodes.iter().position(|&other| other == node) {
                return place as u32;
            }
        } else {
            if self.places.is_empty() {
                self.places.extend(self.nodes.iter().copied().zip(0..));
            }
            let place = *self.places.entry(node).or_insert(next);
            if place < next {
                return place;
            }
        }
        self.nodes.push(node);
        next
    }
}

/// Looks for all orders of `steps` from an unmapped page on, with the labels that `slots` allow.
pub(super) fn search(steps: &PageSteps, slots: &[Labels]) -> Found {
    let mut layer = Layer::default();
    layer.place(Node { done: [0; MAX_THREADS], page: Page::Unmapped });
    let mut edges: Vec<(usize, Vec<Edge>)> = Vec::new();
    let mut total = 0;
    for _ in 0..steps.iter().map(Vec::len).sum() {
        let mut next = Layer::default();
        let mut new = Vec::new();
        for (from, node) in (0..).zip(&layer.nodes) {
            let pending: [Option<&PageStep>; MAX_THREADS] =
                core::array::from_fn(|thread| steps[thread].get(usize::from(node.done[thread])));
            let first_end = pending.iter().flatten().map(|step| step.end).min();
            for (thread, step) in pending.iter().enumerate() {
                let Some(step) = step.filter(|step| first_end.is_none_or(|end| step.begin < end)) else {
                    continue;
                };
                let mut done = node.done;
                done[thread] += 1;
                step.effect.step(node.page, &slots[step.slot], |label, page| {
                    new.push(Edge { from, to: next.place(Node { done, page }), slot: step.slot, label });
                });
            }
        }
        if next.nodes.is_empty() {
            return Found::None(stuck(steps, &layer.nodes));
        }
        total += next.nodes.len();
        if total > MOST_NODES {
            return Found::TooMany;
        }
        edges.push((layer.nodes.len(), new));
        layer = next;
    }
    Found::Orders(labels(&edges, layer.nodes.len()))
}

/// The labels on paths to the last layer, by the steps between the layers with the number of nodes before
/// them.
fn labels(steps: &[(usize, Vec<Edge>)], last: usize) -> HashSet<(usize, Label)> {
    let mut found = HashSet::new();
    let mut alive = vec![true; last];
    for (count, edges) in steps.iter().rev() {
        let mut before = vec![false; *count];
        for edge in edges.iter().filter(|edge| alive[edge.to as usize]) {
            before[edge.from as usize] = true;
            if edge.slot != ALWAYS {
                found.insert((edge.slot, edge.label));
            }
        }
        alive = before;
    }
    found
}

/// The events that come next after each of `nodes`.
fn stuck(steps: &PageSteps, nodes: &[Node]) -> Vec<usize> {
    let mut events: Vec<usize> = nodes
        .iter()
        .flat_map(|node| {
            steps.iter().zip(node.done).filter_map(|(steps, done)| Some(steps.get(usize::from(done))?.event))
        })
        .collect();
    events.sort_unstable();
    events.dedup();
    events
}
