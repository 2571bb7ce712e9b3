//! The auditor's part: every anon_vma is found from the VMAs, and recounted.

use crate::space_core::{AnonVma, Scratch, SpaceCore, Vma};
use core::cell::Cell;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;

/// A broken invariant of an anon_vma.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AnonVmaViolation {
    /// The links, the order, the sizes, the largest ends or the balance of its tree of VMAs.
    Tree,
    /// A VMA names the anon_vma and is not in its tree, or the other way round.
    Members {
        /// VMAs that name it.
        expected: u64,
        /// VMAs in its tree.
        found: u64,
    },
    /// A VMA in its tree has other page offsets than the tree says, or names another anon_vma or space.
    Member,
    /// The list of its children.
    Children {
        /// Anon_vmas that name it as their parent.
        expected: u64,
        /// Anon_vmas on the list.
        found: u64,
    },
    /// Its references.
    Refs {
        /// The recount.
        expected: u64,
        /// What was counted.
        found: u64,
    },
    /// The VMAs of its tree, which it is the root of.
    FamilyVmas {
        /// The recount.
        expected: u64,
        /// What was counted.
        found: u64,
    },
    /// The anon_vmas of its tree without VMAs.
    FamilyEmpty {
        /// The recount.
        expected: u64,
        /// What was counted.
        found: u64,
    },
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

/// An audit of all anon_vmas, on a quiet machine. Every VMA goes through [`count`](Self::count), then every
/// VMA through [`check`](Self::check), then every VMA through [`clear`](Self::clear).
#[derive(Debug, Default)]
pub struct AnonVmaAudit {
    anon_vmas: u64,
}

impl AnonVmaAudit {
    /// Anon_vmas that were found.
    pub fn anon_vmas(&self) -> u64 {
        self.anon_vmas
    }

    /// Counts a VMA, and the anon_vmas above it that were not seen yet.
    pub fn count(&mut self, vma: &Vma) {
        let Some(anon_vma) = anon_vma(vma) else { return };
        add(&anon_vma.scratch.vmas, 1);
        add(&anon_vma.root().scratch.tree_vmas, 1);
        let mut next = Some(anon_vma);
        while let Some(anon_vma) = next.filter(|anon_vma| !anon_vma.scratch.seen.replace(true)) {
            self.anon_vmas += 1;
            // SAFETY: the machine is quiet.
            let empty = unsafe { anon_vma.vmas.is_empty() };
            add(&anon_vma.root().scratch.tree_empty, u64::from(empty));
            next = anon_vma.parent();
            if let Some(parent) = next {
                add(&parent.scratch.children, 1);
            }
        }
    }

    /// Compares a VMA of `core` and the anon_vmas above it with the recount.
    pub fn check(core: &SpaceCore, vma: &Vma, report: &mut dyn FnMut(AnonVmaViolation)) {
        if vma.anon().is_some() && vma.membership().core() != Some(NonNull::from(core)) {
            report(AnonVmaViolation::Member);
        }
        Self::check_anon_vmas(vma, report);
    }

    fn check_anon_vmas(vma: &Vma, report: &mut dyn FnMut(AnonVmaViolation)) {
        let mut next = anon_vma(vma);
        while let Some(anon_vma) = next.filter(|anon_vma| !anon_vma.scratch.checked.replace(true)) {
            check_anon_vma(anon_vma, report);
            next = anon_vma.parent();
        }
    }

    /// Clears the scratch words.
    pub fn clear(vma: &Vma) {
        let mut next = anon_vma(vma);
        while let Some(anon_vma) = next.filter(|anon_vma| anon_vma.scratch.seen.replace(false)) {
            let Scratch { seen: _, checked, vmas, children, tree_vmas, tree_empty } = &anon_vma.scratch;
            checked.set(false);
            for count in [vmas, children, tree_vmas, tree_empty] {
                count.set(0);
            }
            next = anon_vma.parent();
        }
    }

    /// Whether a page whose frame has the owner `owner` may be mapped by `vma`: its anon_vma is the VMA's, or
    /// above that.
    pub fn may_map(vma: &Vma, owner: Option<usize>) -> bool {
        anon_vma(vma)
            .zip(owner.and_then(AnonVma::of_owner))
            .is_some_and(|(anon_vma, owner)| anon_vma.descends_from(owner))
    }
}

/// The anon_vma of a VMA that is in a space's tree.
fn anon_vma(vma: &Vma) -> Option<&AnonVma> {
    vma.anon().get()
}

fn check_anon_vma(anon_vma: &AnonVma, report: &mut dyn FnMut(AnonVmaViolation)) {
    let mut children = 0;
    let mut next = anon_vma.first_child();
    while let Some(child) = next {
        children += 1;
        next = child.next_sibling();
    }
    let mut unequal = |expected, found, violation: fn(u64, u64) -> AnonVmaViolation| {
        if expected != found {
            report(violation(expected, found));
        }
    };
    let Scratch { vmas, children: named, tree_vmas, tree_empty, .. } = &anon_vma.scratch;
    // SAFETY: the machine is quiet.
    let members = u64::from(unsafe { anon_vma.vmas.len() });
    unequal(vmas.get(), members, |expected, found| AnonVmaViolation::Members { expected, found });
    unequal(named.get(), children, |expected, found| AnonVmaViolation::Children { expected, found });
    let refs = u64::from(anon_vma.refs.load(Ordering::Relaxed));
    let expected = named.get() + u64::from(vmas.get() > 0);
    unequal(expected, refs, |expected, found| AnonVmaViolation::Refs { expected, found });
    if anon_vma.parent().is_none() {
        let [vmas, empty] = [&anon_vma.stats.vmas, &anon_vma.stats.empty].map(|n| n.load(Ordering::Relaxed));
        unequal(tree_vmas.get(), vmas, |expected, found| AnonVmaViolation::FamilyVmas { expected, found });
        unequal(tree_empty.get(), empty, |expected, found| AnonVmaViolation::FamilyEmpty { expected, found });
    }
    // SAFETY: the machine is quiet.
    if !unsafe { anon_vma.vmas.is_sound() } {
        report(AnonVmaViolation::Tree);
        return;
    }
    for vma in anon_vma.vmas_holding(0, u64::MAX) {
        let names_it = vma.anon().get().is_some_and(|named| ptr::eq(named, anon_vma));
        if !names_it || vma.membership().interval() != vma.snapshot().page_offsets() {
            report(AnonVmaViolation::Member);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
