//! What address spaces have in common after forks: a tree of layers.
//!
//! A fork makes what the parent has of its own a layer, on which both stand. What stands on a layer sees its
//! pages and those of all layers below; each layer carries the sum of those below, so that a touch asks one
//! set. Where only one is left on a layer, it takes the layer's pages.

use super::block::Demand;
use super::budget::Budget;
use super::pages::{INHERITED_BYTES, Inherited, PlannedPages, leave_dropped};
use super::space::Image;
use std::collections::HashMap;
use std::sync::Arc;

/// What a layer takes beside its pages.
const LAYER_BYTES: u64 = 512;

/// What stands on a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum User {
    Space(usize),
    Layer(usize),
}

impl User {
    fn code(self) -> usize {
        match self {
            Self::Space(number) => number << 1,
            Self::Layer(number) => number << 1 | 1,
        }
    }

    fn of(code: usize) -> Self {
        if code & 1 == 0 { Self::Space(code >> 1) } else { Self::Layer(code >> 1) }
    }
}

/// The users of a layer. Which they are matters only once one is left, so their sum is enough.
#[derive(Clone, Copy, Debug, Default)]
struct Users {
    count: usize,
    sum: usize,
}

impl Users {
    fn add(&mut self, user: User) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(user.code());
    }

    fn remove(&mut self, user: User) {
        self.count -= 1;
        self.sum = self.sum.wrapping_sub(user.code());
    }

    fn only(&self) -> Option<User> {
        (self.count == 1).then(|| User::of(self.sum))
    }
}

/// What the processes of a fork had in common: frames that stay as long as one of them maps them.
#[derive(Debug)]
struct Layer {
    pages: PlannedPages,
    below: Option<usize>,
    /// The pages of all layers below, but for those that were dropped before this layer was made.
    inherited: Arc<Inherited>,
    /// Whether there are such.
    has_dropped: bool,
    users: Users,
    /// Bytes that it takes.
    bytes: u64,
}

/// Layers by their number.
#[derive(Debug, Default)]
pub(super) struct Layers {
    layers: HashMap<usize, Layer>,
    begun: usize,
    /// What all need.
    pub(super) demand: Demand,
}

impl Layers {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Makes what space number `parent` has of its own a layer, on which space number `child` will stand,
    /// too. `false` if that is too much.
    pub(super) fn fork(
        &mut self,
        image: &mut Image,
        [parent, child]: [usize; 2],
        budget: &mut Budget,
    ) -> bool {
        if !image.own.blocks.is_empty() {
            let entries = (image.inherited.len() + image.own.blocks.len()) as u64;
            let bytes = LAYER_BYTES + entries * INHERITED_BYTES;
            if !budget.visit(entries) || !budget.hold(bytes) {
                return false;
            }
            let number = self.begun;
            self.begun += 1;
            let pages = std::mem::take(&mut image.own);
            let mut seen = (*image.inherited).clone();
            for (block, own) in &pages.blocks {
                let touched = seen.entry(*block).or_default();
                *touched = touched.or(&own.touched);
            }
            self.demand.add(&pages.demand);
            let inherited = std::mem::replace(&mut image.inherited, Arc::new(seen));
            let below = image.top.replace(number);
            self.exchange(below, User::Space(parent), User::Layer(number));
            let mut users = Users::default();
            users.add(User::Space(parent));
            let has_dropped = image.has_dropped;
            self.layers.insert(number, Layer { pages, below, inherited, has_dropped, users, bytes });
        }
        if let Some(layer) = image.top.and_then(|top| self.layers.get_mut(&top)) {
            layer.users.add(User::Space(child));
        }
        true
    }

    /// Space number `space` stands on layer `top` no more. What only one still has is its own. `false` if
    /// that is too much to look at. Also returns the space that has more of its own now, if one has.
    pub(super) fn leave(
        &mut self,
        top: usize,
        space: usize,
        images: &mut HashMap<usize, Image>,
        budget: &mut Budget,
    ) -> (Option<usize>, bool) {
        let Some(layer) = self.layers.get_mut(&top) else { return (None, true) };
        layer.users.remove(User::Space(space));
        let Some(heir) = layer.users.only() else { return (None, true) };
        let Some(Layer { mut pages, below, mut inherited, bytes, .. }) = self.layers.remove(&top) else {
            return (None, true);
        };
        budget.release(bytes);
        self.demand.subtract(&pages.demand);
        self.exchange(below, User::Layer(top), heir);
        match heir {
            User::Space(space) => {
                let Some(image) = images.get_mut(&space) else { return (None, true) };
                image.top = below;
                (Some(space), image.take(budget, pages, inherited))
            }
            User::Layer(number) => {
                let Some(layer) = self.layers.get_mut(&number) else { return (None, true) };
                let ok =
                    !layer.has_dropped || leave_dropped(budget, &layer.inherited, &mut pages, &mut inherited);
                (layer.below, layer.inherited) = (below, inherited);
                self.demand.subtract(&layer.pages.demand);
                let ok = layer.pages.take(budget, pages) && ok;
                self.demand.add(&layer.pages.demand);
                (None, ok)
            }
        }
    }

    /// On a layer stands another one instead.
    fn exchange(&mut self, layer: Option<usize>, before: User, after: User) {
        if let Some(layer) = layer.and_then(|layer| self.layers.get_mut(&layer)) {
            layer.users.remove(before);
            layer.users.add(after);
        }
    }

    /// Nothing is planned any more.
    pub(super) fn clear(&mut self) {
        self.layers = HashMap::new();
    }
}
