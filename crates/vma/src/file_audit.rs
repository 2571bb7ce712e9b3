//! The auditor's part: every mapping of an open file is among the mappings of the file, and holds it.

use crate::rmap::shares_writes;
use crate::space_core::{SpaceCore, Vma};
use core::ptr::{self, NonNull};
use quire_arch::Platform;
use quire_file::{FileMappings, Opening};

/// A broken invariant of the mappings of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileRmapViolation {
    /// A VMA that maps an open file is not among the mappings of the file, or is at other page offsets
    /// there, or names another space.
    Place,
    /// A VMA that maps no open file is among the mappings of one.
    Stray,
    /// The links, the order, the sizes, the largest ends, the balance or the count of the tree.
    Tree,
    /// A VMA in the tree maps another file.
    Member,
    /// VMAs of the tree.
    Members {
        /// VMAs of spaces that map the file.
        expected: usize,
        /// VMAs in the tree.
        found: usize,
    },
    /// VMAs whose writes go to the file, or may in future.
    Writers {
        /// The recount.
        expected: usize,
        /// What was counted.
        found: usize,
    },
    /// An open file has fewer holders than VMAs that name it.
    Holders {
        /// VMAs that name it.
        expected: usize,
        /// What was counted.
        found: usize,
    },
}

/// An audit of the mappings of all files, on a quiet machine. Every VMA goes through [`count`](Self::count),
/// then every VMA through [`check`](Self::check).
#[derive(Debug)]
pub struct FileRmapAudit;

impl FileRmapAudit {
    /// Counts a VMA.
    pub fn count(vma: &Vma) {
        if let Some(opening) = opening(vma) {
            opening.count_found();
            opening.mappings().count_found();
        }
    }

    /// Compares a VMA of `core` with the mappings of its file, and these with the recount.
    pub fn check<P: Platform>(
        platform: &P,
        core: &SpaceCore,
        vma: &Vma,
        report: &mut dyn FnMut(FileRmapViolation),
    ) {
        let place = vma.membership().file_interval();
        let Some(opening) = opening(vma) else {
            if place.is_some() {
                report(FileRmapViolation::Stray);
            }
            return;
        };
        let is_of_space = vma.membership().core() == Some(NonNull::from(core));
        if place != Some(vma.snapshot().page_offsets()) || !is_of_space {
            report(FileRmapViolation::Place);
        }
        // The first VMA takes the count for all.
        let (expected, found) = (opening.take_found(), opening.holders());
        if found < expected {
            report(FileRmapViolation::Holders { expected, found });
        }
        let expected = opening.mappings().take_found();
        if expected > 0 {
            check_mappings(platform, opening.mappings(), expected, report);
        }
    }
}

/// The open file of a VMA that is in a space's tree.
fn opening(vma: &Vma) -> Option<&Opening<Vma>> {
    // SAFETY: the machine is quiet, so the VMA remains a holder.
    unsafe { vma.backing().opening() }
}

fn check_mappings<P: Platform>(
    platform: &P,
    mappings: &FileMappings<Vma>,
    expected: usize,
    report: &mut dyn FnMut(FileRmapViolation),
) {
    let held = mappings.read(platform);
    if !held.is_sound() {
        report(FileRmapViolation::Tree);
        return;
    }
    let (mut found, mut writers) = (0, 0);
    for vma in held.holding(0, u64::MAX) {
        if !opening(vma).is_some_and(|opening| ptr::eq(opening.mappings(), mappings)) {
            report(FileRmapViolation::Member);
        }
        found += 1;
        writers += usize::from(shares_writes(vma.flags()));
    }
    if expected != found {
        report(FileRmapViolation::Members { expected, found });
    }
    if writers != mappings.writers() {
        report(FileRmapViolation::Writers { expected: writers, found: mappings.writers() });
    }
}
