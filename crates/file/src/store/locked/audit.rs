//! The store, recounted.

use crate::entry::Stored;
use crate::index::PageIndex;
use crate::node::{HeldNode, TAGS};
use crate::store::figures::StoreFigures;
use crate::store::tag::words_mask;
use crate::word::{Holds, Word};

/// What is wrong in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreViolation {
    /// The words of an entry are not alike, or lie in a node of another level.
    #[error("the words of the entry at page {0:#x} are not those of its order")]
    Words(u64),
    /// A node links to its child, and the child names another place.
    #[error("a node at page {0:#x} has another parent, or is of a wrong level")]
    Link(u64),
    /// A node's counts of words or shadows are wrong, or it is empty.
    #[error("the counts of the node at page {0:#x} are wrong")]
    Counts(u64),
    /// A node says of a tag what its words do not.
    #[error("a tag of the node at page {0:#x} is wrong")]
    Tags(u64),
    /// A node is on the list of nodes with nothing but shadows and should not be, or the other way around.
    #[error("the node at page {0:#x} is listed wrongly")]
    Listed(u64),
    /// The root could be lower.
    #[error("the tree is higher than it has to be")]
    Height,
    /// What is counted is not there.
    #[error("counted are {counted:?}, there are {found:?}")]
    Figures {
        /// What is counted.
        counted: StoreFigures,
        /// What is there.
        found: StoreFigures,
    },
}

/// Looks at a node that begins at `page`, and at those below it.
pub(super) fn node(
    node: HeldNode<'_>,
    page: u64,
    found: &mut StoreFigures,
    report: &mut dyn FnMut(StoreViolation),
    each: &mut dyn FnMut(&Stored, [bool; TAGS]),
) {
    let (level, counts) = (node.level(), node.counts());
    let (mut words, mut shadows, mut tags) = (0, 0, [0; TAGS]);
    for slot in 0..level.words() {
        let word = node.word(slot);
        let here = page + slot as u64 * level.word_pages();
        words += u8::from(word != Word::NONE);
        shadows += u8::from(word.is_shadow());
        match word.holds() {
            Holds::Nothing => {}
            Holds::Gone => report(StoreViolation::Link(here)),
            Holds::Node(_) => {
                let Some(child) = node.child(slot) else { continue };
                let above = (child.counts().parent, usize::from(child.counts().slot));
                if above != (Some(node.head()), slot) || level.below() != Some(child.level()) {
                    report(StoreViolation::Link(here));
                    continue;
                }
                self::node(child, here, found, report, each);
                for (tag, mask) in tags.iter_mut().enumerate() {
                    *mask |= u64::from(child.counts().tags[tag] != 0) << slot;
                }
            }
            Holds::Entry(order, _) if !level.is_of(order) => report(StoreViolation::Words(here)),
            Holds::Entry(order, entry) => {
                let start = PageIndex::known(here).block_start(order);
                if start.get() != here {
                    // One of its other words, looked at with the first.
                    if slot == 0 || node.word(slot - 1) != word {
                        report(StoreViolation::Words(here));
                    }
                    continue;
                }
                let all = slot..(slot + level.words_of(order)).min(level.words());
                if all.clone().any(|slot| node.word(slot) != word) {
                    report(StoreViolation::Words(here));
                }
                let stored = Stored { start, order, entry };
                let mask = words_mask(slot, all.len());
                let mut has = [false; TAGS];
                for tag in 0..TAGS {
                    has[tag] = counts.tags[tag] & mask == mask;
                    tags[tag] |= if has[tag] { mask } else { 0 };
                }
                found.change(&stored, true);
                each(&stored, has);
            }
        }
    }
    found.nodes += 1;
    if (words, shadows) != (counts.words, counts.shadows) || words == 0 {
        report(StoreViolation::Counts(page));
    }
    if tags != counts.tags {
        report(StoreViolation::Tags(page));
    }
    let has_only_shadows = words > 0 && words == shadows;
    found.shadow_nodes += u64::from(has_only_shadows);
    if counts.listed != has_only_shadows {
        report(StoreViolation::Listed(page));
    }
}
