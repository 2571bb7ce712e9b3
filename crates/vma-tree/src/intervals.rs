//! An intrusive interval tree: which members contain an offset?
//!
//! A search tree by the first offset of each member, which also keeps in every node the largest last offset
//! below it (T. Cormen et al., "Introduction to Algorithms", section 14.3). It is balanced by weight, with
//! the parameters that Y. Hirai and K. Yamamoto proved right for single insertions and removals ("Balancing
//! weight-balanced trees", Journal of Functional Programming 21, 2011): chance and the programs' choice of
//! offsets do not change the depth. Links lie in the members, so that nothing is allocated, and lead upwards
//! too, so that nothing is searched for before it is removed, and nothing recurses.
//!
//! Members may overlap, and several may hold the same offsets. Those that begin at the same offset keep the
//! order in which they were put in: a walk meets a mapping of a file before the copies that forks made of it.
//!
//! A member may have a place in several trees, one for each type `Tree` for which it is a [`Member`].

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;

type Link<T> = Cell<Option<NonNull<T>>>;

/// Left and right of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left = 0,
    Right = 1,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// A subtree may weigh this many times what the one beside it does.
const BALANCE: u32 = 3;
/// An inner subtree heavier by this factor needs a double rotation.
const LEAN: u32 = 2;

/// A member's place in a tree of the kind `Tree`.
pub struct IntervalLink<T, Tree> {
    parent: Link<T>,
    below: [Link<T>; 2],
    /// Members in the subtree; 0 outside of a tree.
    size: Cell<u32>,
    first: Cell<u64>,
    last: Cell<u64>,
    /// The largest `last` in the subtree.
    reach: Cell<u64>,
    of: PhantomData<fn() -> Tree>,
}

// SAFETY: a place is read and written only under the lock of its tree (contract of `IntervalTree`), and what
// it links are shared objects, so that it does not matter which thread holds the lock.
unsafe impl<T: Sync, Tree> Send for IntervalLink<T, Tree> {}
// SAFETY: the cells are read and written only under the lock of the tree (contract of `IntervalTree`).
unsafe impl<T: Sync, Tree> Sync for IntervalLink<T, Tree> {}

impl<T, Tree> IntervalLink<T, Tree> {
    /// No place yet.
    pub const fn new() -> Self {
        Self {
            parent: Cell::new(None),
            below: [Cell::new(None), Cell::new(None)],
            size: Cell::new(0),
            first: Cell::new(0),
            last: Cell::new(0),
            reach: Cell::new(0),
            of: PhantomData,
        }
    }

    /// Whether the place is in a tree.
    ///
    /// # Safety
    ///
    /// The lock of the tree that the member is in, or may enter, is held in some way.
    pub unsafe fn is_linked(&self) -> bool {
        self.is_in_tree()
    }

    fn is_in_tree(&self) -> bool {
        self.size.get() != 0
    }

    /// The offsets that the member holds: the first and the last.
    ///
    /// # Safety
    ///
    /// As for [`is_linked`](Self::is_linked).
    pub unsafe fn interval(&self) -> (u64, u64) {
        (self.first.get(), self.last.get())
    }

    fn at(&self, side: Side) -> Option<NonNull<T>> {
        self.below[side as usize].get()
    }
}

/// What has a place in a tree of the kind `Tree`.
///
/// # Safety
///
/// `place` returns the same place of the same member every time.
pub unsafe trait Member<Tree>: Sized {
    /// The member's place.
    fn place(&self) -> &IntervalLink<Self, Tree>;
}

/// The members, by the offsets that they hold.
///
/// All methods but `new` rely on one lock, of the tree's owner: it is held exclusively to change the tree and
/// held in some way to look. A member stays where it is and lives for as long as it is in the tree.
pub struct IntervalTree<T, Tree> {
    root: Link<T>,
    of: PhantomData<fn() -> Tree>,
}

// SAFETY: as for `IntervalLink`.
unsafe impl<T: Sync, Tree> Send for IntervalTree<T, Tree> {}
// SAFETY: as for `IntervalLink`.
unsafe impl<T: Sync, Tree> Sync for IntervalTree<T, Tree> {}

impl<T: Member<Tree>, Tree> IntervalTree<T, Tree> {
    /// An empty tree.
    pub const fn new() -> Self {
        Self { root: Cell::new(None), of: PhantomData }
    }

    /// Whether it has no members.
    ///
    /// # Safety
    ///
    /// The lock is held in some way.
    pub unsafe fn is_empty(&self) -> bool {
        self.root.get().is_none()
    }

    /// Number of members.
    ///
    /// # Safety
    ///
    /// The lock is held in some way.
    pub unsafe fn len(&self) -> u32 {
        self.count()
    }

    /// The same for methods whose caller holds the lock.
    fn count(&self) -> u32 {
        self.size(self.root.get())
    }

    /// Puts `member` in, holding the offsets from `first` to `last`.
    ///
    /// # Safety
    ///
    /// The lock is held exclusively. The member is in no tree, and lives and stays where it is until it is
    /// removed.
    pub unsafe fn insert(&self, member: NonNull<T>, first: u64, last: u64) {
        let place = self.place(member);
        debug_assert!(!place.is_in_tree() && first <= last);
        let mut parent = None;
        let mut next = self.root.get();
        let mut side = Side::Left;
        while let Some(node) = next {
            parent = next;
            // Equal ones go right: they stay in the order in which they come.
            side = if first < self.place(node).first.get() { Side::Left } else { Side::Right };
            next = self.place(node).at(side);
        }
        place.parent.set(parent);
        place.below[0].set(None);
        place.below[1].set(None);
        place.first.set(first);
        place.last.set(last);
        match parent {
            Some(parent) => self.place(parent).below[side as usize].set(Some(member)),
            None => self.root.set(Some(member)),
        }
        self.repair(Some(member));
    }

    /// Takes `member` out.
    ///
    /// # Safety
    ///
    /// The lock is held exclusively, and the member is in this tree.
    pub unsafe fn remove(&self, member: NonNull<T>) {
        let place = self.place(member);
        debug_assert!(place.is_in_tree());
        let lowest_changed = match (place.at(Side::Left), place.at(Side::Right)) {
            (Some(left), Some(right)) => {
                // The next member in the order has nothing on its left, so it can be taken out, and takes the
                // place.
                let next = self.outermost(right, Side::Left);
                let above = self.place(next).parent.get().filter(|&above| above != member);
                self.replace(next, self.place(next).at(Side::Right));
                self.replace(member, Some(next));
                self.attach(next, Side::Left, Some(left));
                self.attach(next, Side::Right, place.at(Side::Right));
                Some(above.unwrap_or(next))
            }
            (one, other) => {
                let above = place.parent.get();
                self.replace(member, one.or(other));
                above
            }
        };
        place.size.set(0);
        self.repair(lowest_changed);
    }

    /// Changes the offsets that `member` holds.
    ///
    /// # Safety
    ///
    /// As for [`remove`](Self::remove).
    pub unsafe fn change(&self, member: NonNull<T>, first: u64, last: u64) {
        if self.place(member).first.get() == first {
            self.place(member).last.set(last);
            self.repair(Some(member));
        } else {
            // SAFETY: the caller's promise, for both.
            unsafe {
                self.remove(member);
                self.insert(member, first, last);
            }
        }
    }

    /// The members that hold an offset from `first` to `last`, by their own first offsets. Each step takes
    /// logarithmic time.
    ///
    /// # Safety
    ///
    /// The lock is held in some way for as long as the iterator is used.
    pub unsafe fn holding(&self, first: u64, last: u64) -> impl Iterator<Item = NonNull<T>> {
        let mut next = self.root.get().and_then(|root| self.first_holding(root, first, last));
        core::iter::from_fn(move || {
            let found = next?;
            next = self.next_holding(found, first, last);
            Some(found)
        })
    }

    /// All members, by their first offsets.
    ///
    /// # Safety
    ///
    /// As for [`holding`](Self::holding).
    pub unsafe fn iter(&self) -> impl Iterator<Item = NonNull<T>> {
        // SAFETY: the caller's promise.
        unsafe { self.holding(0, u64::MAX) }
    }

    /// The first member of the subtree at `node` that holds one of the offsets.
    fn first_holding(&self, mut node: NonNull<T>, first: u64, last: u64) -> Option<NonNull<T>> {
        loop {
            let place = self.place(node);
            if let Some(left) = place.at(Side::Left).filter(|&left| self.place(left).reach.get() >= first) {
                // A member there ends late enough. If it also begins too late, so does each to the right of
                // it.
                node = left;
            } else if place.first.get() > last {
                return None;
            } else if place.last.get() >= first {
                return Some(node);
            } else {
                node = place.at(Side::Right).filter(|&right| self.place(right).reach.get() >= first)?;
            }
        }
    }

    /// The one after `node`, which holds one of them.
    fn next_holding(&self, mut node: NonNull<T>, first: u64, last: u64) -> Option<NonNull<T>> {
        loop {
            let right = self.place(node).at(Side::Right);
            if let Some(right) = right.filter(|&right| self.place(right).reach.get() >= first) {
                return self.first_holding(right, first, last);
            }
            // Up to the first node that is to the right of all this.
            loop {
                let parent = self.place(node).parent.get()?;
                let was_right = self.place(parent).at(Side::Right) == Some(node);
                node = parent;
                if !was_right {
                    break;
                }
            }
            let place = self.place(node);
            if place.first.get() > last {
                return None;
            }
            if place.last.get() >= first {
                return Some(node);
            }
        }
    }

    fn place(&self, member: NonNull<T>) -> &IntervalLink<T, Tree> {
        // SAFETY: a member lives while it is in the tree, and the one that is put in or taken out lives
        // during that call. No reference outlives the method that asks for it.
        unsafe { member.as_ref() }.place()
    }

    fn size(&self, node: Option<NonNull<T>>) -> u32 {
        node.map_or(0, |node| self.place(node).size.get())
    }

    fn outermost(&self, mut node: NonNull<T>, side: Side) -> NonNull<T> {
        while let Some(below) = self.place(node).at(side) {
            node = below;
        }
        node
    }

    /// Hangs `child` below `node`.
    fn attach(&self, node: NonNull<T>, side: Side, child: Option<NonNull<T>>) {
        self.place(node).below[side as usize].set(child);
        if let Some(child) = child {
            self.place(child).parent.set(Some(node));
        }
    }

    /// Puts `new` in the place of `old`.
    fn replace(&self, old: NonNull<T>, new: Option<NonNull<T>>) {
        match self.place(old).parent.get() {
            Some(parent) => {
                let left = self.place(parent).at(Side::Left) == Some(old);
                self.attach(parent, if left { Side::Left } else { Side::Right }, new);
            }
            None => {
                self.root.set(new);
                if let Some(new) = new {
                    self.place(new).parent.set(None);
                }
            }
        }
    }

    /// Updates size and reach of `node` from its children.
    fn refresh(&self, node: NonNull<T>) {
        let place = self.place(node);
        let below = [place.at(Side::Left), place.at(Side::Right)];
        place.size.set(1 + self.size(below[0]) + self.size(below[1]));
        let reaches = below.into_iter().flatten().map(|child| self.place(child).reach.get());
        place.reach.set(reaches.fold(place.last.get(), u64::max));
    }

    /// Restores sizes and balance from `lowest` up to the root.
    fn repair(&self, lowest: Option<NonNull<T>>) {
        let mut next = lowest;
        while let Some(node) = next {
            self.refresh(node);
            next = self.place(self.balance(node)).parent.get();
        }
    }

    /// Rotates at `node` if one side has grown too heavy, and returns the node that is at the top then.
    fn balance(&self, node: NonNull<T>) -> NonNull<T> {
        let weight = |child| self.size(child) + 1;
        for heavy in [Side::Left, Side::Right] {
            let place = self.place(node);
            let Some(child) = place.at(heavy) else { continue };
            if weight(Some(child)) <= BALANCE * weight(place.at(heavy.other())) {
                continue;
            }
            let child_place = self.place(child);
            if weight(child_place.at(heavy.other())) >= LEAN * weight(child_place.at(heavy)) {
                self.lift(child, heavy.other());
            }
            return self.lift(node, heavy);
        }
        node
    }

    /// Rotates the child on `side` up into the place of `node`, and returns the child.
    fn lift(&self, node: NonNull<T>, side: Side) -> NonNull<T> {
        let Some(child) = self.place(node).at(side) else { return node };
        let inner = self.place(child).at(side.other());
        self.replace(node, Some(child));
        self.attach(node, side, inner);
        self.attach(child, side.other(), Some(node));
        self.refresh(node);
        self.refresh(child);
        child
    }

    /// Whether links, order, sizes, reaches and balance are right, for the auditor.
    ///
    /// # Safety
    ///
    /// As for [`holding`](Self::holding), and the links lead to members of this tree.
    pub unsafe fn is_sound(&self) -> bool {
        let mut seen = 0;
        let mut before = 0;
        let mut next = self.root.get().map(|root| self.outermost(root, Side::Left));
        while let Some(node) = next {
            let place = self.place(node);
            let below = [place.at(Side::Left), place.at(Side::Right)];
            let weights = below.map(|child| self.size(child) + 1);
            let mut reach = place.last.get();
            for child in below.into_iter().flatten() {
                if self.place(child).parent.get() != Some(node) {
                    return false;
                }
                reach = reach.max(self.place(child).reach.get());
            }
            let balanced = weights[0] <= BALANCE * weights[1] && weights[1] <= BALANCE * weights[0];
            let counted = place.size.get() == weights[0] + weights[1] - 1 && place.reach.get() == reach;
            let ordered = before <= place.first.get() && place.first.get() <= place.last.get();
            seen += 1;
            if !(balanced && counted && ordered) || seen > self.count() {
                return false;
            }
            before = place.first.get();
            next = self.next_in_order(node);
        }
        seen == self.count()
    }

    fn next_in_order(&self, mut node: NonNull<T>) -> Option<NonNull<T>> {
        if let Some(right) = self.place(node).at(Side::Right) {
            return Some(self.outermost(right, Side::Left));
        }
        loop {
            let parent = self.place(node).parent.get()?;
            if self.place(parent).at(Side::Left) == Some(node) {
                return Some(parent);
            }
            node = parent;
        }
    }
}

impl<T: Member<Tree>, Tree> Default for IntervalTree<T, Tree> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, Tree> fmt::Debug for IntervalTree<T, Tree> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Members may be looked at only under the lock.
        f.debug_struct("IntervalTree").finish_non_exhaustive()
    }
}

impl<T, Tree> Default for IntervalLink<T, Tree> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, Tree> fmt::Debug for IntervalLink<T, Tree> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // May be read only under the lock of the tree.
        f.debug_struct("IntervalLink").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
