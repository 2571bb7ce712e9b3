//! Where nodes come from and go to; nodes that are allocated beforehand.

use crate::level::Level;
use crate::node::{HeldNode, Narrow, Node, Wide};
use arrayvec::ArrayVec;
use core::fmt;
use core::ptr::NonNull;
use quire_frame::AllocError;

/// The source and the sink of a store's nodes.
///
/// # Safety
///
/// Readers follow the links of a store without a lock, so an implementation guarantees that
/// - what is allocated is valid and aligned for such a node, and no other code uses it until it comes back;
///   its contents do not matter;
/// - memory given to `retire` stays as it is until every section of the epoch that was open at the call has
///   ended. The epoch is the one whose guards are passed to [`FolioStore::find`](crate::FolioStore::find);
/// - taking back neither unwinds nor uses a store.
pub unsafe trait NodeSource {
    /// Memory for a node of most levels.
    ///
    /// # Errors
    ///
    /// When there is none.
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_wide(&self) -> Result<NonNull<Wide>, AllocError>;

    /// Memory for a node of the level between pages and huge pages.
    ///
    /// # Errors
    ///
    /// When there is none.
    #[cfg_attr(debug_assertions, track_caller)]
    fn allocate_narrow(&self) -> Result<NonNull<Narrow>, AllocError>;

    /// Takes back a node. It never fails, and never sleeps for memory.
    ///
    /// # Safety
    ///
    /// It came from [`allocate_wide`](Self::allocate_wide), is linked nowhere, and is returned once.
    unsafe fn retire_wide(&self, node: NonNull<Wide>);

    /// Takes back a node. It never fails, and never sleeps for memory.
    ///
    /// # Safety
    ///
    /// As for [`retire_wide`](Self::retire_wide), of [`allocate_narrow`](Self::allocate_narrow).
    unsafe fn retire_narrow(&self, node: NonNull<Narrow>);
}

/// How many nodes an operation needs at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    wide: u8,
    narrow: u8,
}

impl Needs {
    /// One node of `level` more.
    pub(crate) fn add(&mut self, level: Level) {
        if level == Level::NARROW { self.narrow += 1 } else { self.wide += 1 }
    }

    /// Those of so many cuts of folios, each of which is halved until a part begins at a page: the nodes that
    /// the halves go to, and one for a folio that is the root.
    pub(crate) const fn of_cuts(cuts: u8) -> Self {
        Self { wide: 2 * cuts, narrow: 2 * cuts }
    }

    /// One node of each level from `lowest` to `highest` more.
    pub(crate) fn add_levels(&mut self, lowest: Level, highest: Level) {
        let mut level = Some(lowest).filter(|lowest| *lowest <= highest);
        while let Some(one) = level {
            self.add(one);
            level = one.above().filter(|above| *above <= highest);
        }
    }
}

/// A split of the largest order into pages needs two narrow nodes, the nodes below these, and one for the
/// root.
const MOST_NARROW: usize = 4;
/// An insertion far from an entry that is the root needs a node of each level for either.
const MOST_WIDE: usize = 2 * Level::FEW + 2 * Level::COUNT;

/// Nodes that were allocated before a store's lock was taken. What is not used goes back to the source when
/// this is dropped.
pub struct Reserve<'s, S: NodeSource> {
    source: &'s S,
    wide: ArrayVec<NonNull<Wide>, MOST_WIDE>,
    narrow: ArrayVec<NonNull<Narrow>, MOST_NARROW>,
}

impl<'s, S: NodeSource> Reserve<'s, S> {
    /// Without nodes.
    ///
    /// # Safety
    ///
    /// It is used only with stores whose [`lock`](crate::FolioStore::lock) is passed this source.
    pub const unsafe fn new(source: &'s S) -> Self {
        Self { source, wide: ArrayVec::new_const(), narrow: ArrayVec::new_const() }
    }

    /// Allocates what is missing of `needs`. Not to be called with the store's lock held.
    ///
    /// # Errors
    ///
    /// When there is no memory; what was allocated stays here.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn fill(&mut self, needs: Needs) -> Result<(), AllocError> {
        while self.narrow.len() < usize::from(needs.narrow) {
            self.narrow.push(self.source.allocate_narrow()?);
        }
        while self.wide.len() < usize::from(needs.wide) {
            self.wide.push(self.source.allocate_wide()?);
        }
        Ok(())
    }

    /// Whether `needs` are met.
    pub(crate) fn has(&self, needs: Needs) -> bool {
        self.wide.len() >= usize::from(needs.wide) && self.narrow.len() >= usize::from(needs.narrow)
    }

    /// An empty node of `level`, for a store of which the caller holds the lock.
    pub(crate) fn take<'h>(&mut self, level: Level) -> HeldNode<'h> {
        const PLANNED: &str = "each operation counts its nodes before it takes one";
        if level == Level::NARROW {
            // SAFETY: the node came from the source and is used here only.
            unsafe { Node::make(self.narrow.pop().expect(PLANNED), level) }
        } else {
            // SAFETY: the node came from the source and is used here only.
            unsafe { Node::make(self.wide.pop().expect(PLANNED), level) }
        }
    }
}

impl<S: NodeSource> Drop for Reserve<'_, S> {
    fn drop(&mut self) {
        for node in self.wide.drain(..) {
            // SAFETY: it came from the source, and no store has it.
            unsafe { self.source.retire_wide(node) };
        }
        for node in self.narrow.drain(..) {
            // SAFETY: it came from the source, and no store has it.
            unsafe { self.source.retire_narrow(node) };
        }
    }
}

impl<S: NodeSource> fmt::Debug for Reserve<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (wide, narrow) = (self.wide.len(), self.narrow.len());
        f.debug_struct("Reserve").field("wide", &wide).field("narrow", &narrow).finish_non_exhaustive()
    }
}

/// Gives a node that has left its store back to its source.
///
/// # Safety
///
/// The node came from `source`, is linked nowhere, and is returned once.
pub(crate) unsafe fn retire<S: NodeSource>(source: &S, node: HeldNode<'_>) {
    if node.level() == Level::NARROW {
        // SAFETY: nodes of that level are narrow ones; the rest is the caller's promise.
        unsafe { source.retire_narrow(node.head().cast()) };
    } else {
        // SAFETY: nodes of the other levels are wide ones; the rest is the caller's promise.
        unsafe { source.retire_wide(node.head().cast()) };
    }
}
