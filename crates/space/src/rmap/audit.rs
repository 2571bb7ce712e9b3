//! The auditor's part: every group is found from the VMAs, and recounted.

use super::group::Group;
use super::walk::group_of;
use crate::space::SpaceCore;
use crate::vma::Vma;
use core::cell::Cell;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

/// What is wrong with a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GroupViolation {
    /// The links, the order, the sizes, the largest ends or the balance of its tree of VMAs.
    Tree,
    /// A VMA names the group and is not in its tree, or the other way round.
    Members {
        /// VMAs that name it.
        expected: u64,
        /// VMAs in its tree.
        found: u64,
    },
    /// A VMA in its tree has other page offsets than the tree says, or names another group or space.
    Member,
    /// The list of its children.
    Children {
        /// Groups that name it as their parent.
        expected: u64,
        /// Groups on the list.
        found: u64,
    },
    /// Its references.
    Refs {
        /// The recount.
        expected: u64,
        /// What was counted.
        found: u64,
    },
    /// The VMAs of its family, which it is the root of.
    FamilyVmas {
        /// The recount.
        expected: u64,
        /// What was counted.
        found: u64,
    },
    /// The groups of its family without VMAs.
    FamilyEmpty {
        /// The recount.
        expected: u64,
        /// What was counted.
        found: u64,
    },
}

impl fmt::Display for GroupViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The auditor's scratch in a group; zero outside of audits.
#[derive(Default)]
pub(super) struct Scratch {
    /// Counted among the groups.
    seen: Cell<bool>,
    /// Held against the recount.
    checked: Cell<bool>,
    /// VMAs that name the group.
    vmas: Cell<u64>,
    /// Groups that name it as their parent.
    children: Cell<u64>,
    /// In a root: VMAs of the family.
    family_vmas: Cell<u64>,
    /// In a root: groups of the family without VMAs.
    family_empty: Cell<u64>,
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

/// An audit of all groups, on a quiet machine. Every VMA goes through [`count`](Self::count), then every VMA through
/// [`check`](Self::check), then every VMA through [`clear`](Self::clear).
#[derive(Default)]
pub(crate) struct GroupAudit {
    groups: u64,
}

impl GroupAudit {
    /// Groups that were found.
    pub(crate) fn groups(&self) -> u64 {
        self.groups
    }

    /// Counts a VMA, and the groups above it that were not seen yet.
    pub(crate) fn count(&mut self, vma: &Vma) {
        let Some(group) = group(vma) else { return };
        add(&group.scratch.vmas, 1);
        add(&group.root().scratch.family_vmas, 1);
        let mut next = Some(group);
        while let Some(group) = next.filter(|group| !group.scratch.seen.replace(true)) {
            self.groups += 1;
            add(&group.root().scratch.family_empty, u64::from(group.vmas.is_empty()));
            next = group.parent();
            if let Some(parent) = next {
                add(&parent.scratch.children, 1);
            }
        }
    }

    /// Holds a VMA of `core` and the groups above it against the recount.
    pub(crate) fn check(core: &SpaceCore, vma: &Vma, report: &mut dyn FnMut(GroupViolation)) {
        if vma.anon().is_some() && vma.membership().core() != Some(NonNull::from(core)) {
            report(GroupViolation::Member);
        }
        Self::check_groups(vma, report);
    }

    fn check_groups(vma: &Vma, report: &mut dyn FnMut(GroupViolation)) {
        let mut next = group(vma);
        while let Some(group) = next.filter(|group| !group.scratch.checked.replace(true)) {
            check_group(group, report);
            next = group.parent();
        }
    }

    /// Makes the scratch zero again.
    pub(crate) fn clear(vma: &Vma) {
        let mut next = group(vma);
        while let Some(group) = next.filter(|group| group.scratch.seen.replace(false)) {
            let Scratch { seen: _, checked, vmas, children, family_vmas, family_empty } = &group.scratch;
            checked.set(false);
            for count in [vmas, children, family_vmas, family_empty] {
                count.set(0);
            }
            next = group.parent();
        }
    }

    /// Whether a page whose frame has the owner `owner` may be mapped by `vma`: its group is the VMA's, or above that.
    pub(crate) fn may_map(vma: &Vma, owner: u64) -> bool {
        group(vma).zip(group_of(owner)).is_some_and(|(group, owner)| group.descends_from(owner))
    }
}

/// The group of a VMA that is in a space's tree.
fn group(vma: &Vma) -> Option<&Group> {
    // SAFETY: a VMA in a space's tree keeps its group, and the machine is quiet.
    vma.anon().group().map(|group| unsafe { group.as_ref() })
}

fn check_group(group: &Group, report: &mut dyn FnMut(GroupViolation)) {
    let mut children = 0;
    let mut next = group.first_child.get();
    while let Some(child) = next {
        children += 1;
        // SAFETY: a group on its parent's list is live, and the machine is quiet.
        next = unsafe { child.as_ref() }.next.get();
    }
    let mut unequal = |expected, found, violation: fn(u64, u64) -> GroupViolation| {
        if expected != found {
            report(violation(expected, found));
        }
    };
    let Scratch { vmas, children: named, family_vmas, family_empty, .. } = &group.scratch;
    unequal(vmas.get(), u64::from(group.vmas.len()), |expected, found| GroupViolation::Members {
        expected,
        found,
    });
    unequal(named.get(), children, |expected, found| GroupViolation::Children { expected, found });
    let refs = u64::from(group.refs.load(Ordering::Relaxed));
    let expected = named.get() + u64::from(vmas.get() > 0);
    unequal(expected, refs, |expected, found| GroupViolation::Refs { expected, found });
    if group.parent.is_none() {
        let [vmas, empty] = [&group.census.vmas, &group.census.empty].map(|n| n.load(Ordering::Relaxed));
        unequal(family_vmas.get(), vmas, |expected, found| GroupViolation::FamilyVmas { expected, found });
        unequal(family_empty.get(), empty, |expected, found| GroupViolation::FamilyEmpty { expected, found });
    }
    // SAFETY: the machine is quiet.
    if !unsafe { group.vmas.is_sound() } {
        report(GroupViolation::Tree);
        return;
    }
    // SAFETY: as above.
    for member in unsafe { group.vmas.iter() } {
        // SAFETY: a VMA in a group is live.
        let vma = unsafe { member.as_ref() };
        let names_it = vma.anon().group() == Some(NonNull::from(group));
        if !names_it || vma.membership().interval() != vma.facts().page_offsets() {
            report(GroupViolation::Member);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
