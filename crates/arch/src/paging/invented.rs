//! A page-table format that no machine has.
//!
//! It differs from x86-64 in everything that a walker could take for granted: three levels of 6, 8 and 7
//! index bits, tables that use only part of their page, an explicit tag instead of a present bit, accessed
//! and dirty bits at the top, and leaves at the two lower levels only. Walkers that pass with it are
//! level-generic.

use super::entry::{pack_absent, unpack_absent};
use super::{Entry, Leaf, LeafFlags, Level, MAX_LEVELS, PagingFormat};
use crate::addr::VirtAddr;
use crate::pfn::Pfn;

const TAG_SHIFT: u32 = 60;
const TAG_TABLE: u64 = 1 << TAG_SHIFT;
const TAG_LEAF: u64 = 2 << TAG_SHIFT;
const TAG_ABSENT: u64 = 3 << TAG_SHIFT;
const TAG_MASK: u64 = 3 << TAG_SHIFT;
const ACCESSED: u64 = 1 << 62;
const DIRTY: u64 = 1 << 63;
const FLAGS_SHIFT: u32 = 44;
const PFN_MASK: u64 = (1 << FLAGS_SHIFT) - 1;
const WRITE: u64 = (LeafFlags::WRITE.bits() as u64) << FLAGS_SHIFT;
const SPECIAL: u64 = (LeafFlags::SPECIAL.bits() as u64) << FLAGS_SHIFT;

/// The invented format: 33 address bits in three levels.
#[derive(Clone, Copy, Debug)]
pub struct Invented3;

// SAFETY: 6, 8 and 7 index bits below the end of 33 address bits; the tests of `paging` hold the functions
// against each other.
unsafe impl PagingFormat for Invented3 {
    const LEVELS: u8 = 3;
    const INDEX_BITS: [u32; MAX_LEVELS] = [6, 8, 7, 0, 0];
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;
    const IDENTITY: u64 = TAG_MASK | SPECIAL | PFN_MASK;
    const NAME: &'static str = "invented, 3 levels";
    const USER_END: VirtAddr = VirtAddr(1 << 33);

    #[inline]
    fn leaf_allowed(level: Level) -> bool {
        level.0 <= 1
    }

    fn encode(entry: Entry, _level: Level) -> u64 {
        match entry {
            Entry::None => 0,
            Entry::Table(pfn) => TAG_TABLE | pfn.0 & PFN_MASK,
            Entry::Leaf(leaf) if leaf.flags.contains(LeafFlags::READ) => {
                let hardware = LeafFlags::ACCESSED | LeafFlags::DIRTY;
                let mut raw = TAG_LEAF | leaf.pfn.0 & PFN_MASK;
                raw |= u64::from((leaf.flags - hardware).bits()) << FLAGS_SHIFT;
                raw |= if leaf.flags.contains(LeafFlags::ACCESSED) { ACCESSED } else { 0 };
                raw | if leaf.flags.contains(LeafFlags::DIRTY) { DIRTY } else { 0 }
            }
            absent => TAG_ABSENT | pack_absent(absent),
        }
    }

    fn decode(raw: u64, _level: Level) -> Entry {
        match raw & TAG_MASK {
            TAG_TABLE => Entry::Table(Pfn(raw & PFN_MASK)),
            TAG_LEAF => {
                let mut flags = LeafFlags::from_bits_truncate((raw >> FLAGS_SHIFT) as u16);
                flags.set(LeafFlags::ACCESSED, raw & ACCESSED != 0);
                flags.set(LeafFlags::DIRTY, raw & DIRTY != 0);
                Entry::Leaf(Leaf { pfn: Pfn(raw & PFN_MASK), flags })
            }
            // A stray value without a tag is not empty unless it is zero: see `unpack_absent`.
            _ => unpack_absent(raw & !(TAG_MASK | ACCESSED | DIRTY)),
        }
    }

    #[inline]
    fn is_present_leaf(raw: u64, _level: Level) -> bool {
        raw & TAG_MASK == TAG_LEAF
    }

    #[inline]
    fn frame_of(raw: u64) -> Pfn {
        Pfn(raw & PFN_MASK)
    }

    #[inline]
    fn without_write(raw: u64) -> u64 {
        raw & !WRITE
    }

    #[inline]
    fn frames_on(raw: u64, pages: u64) -> u64 {
        raw.wrapping_add(pages)
    }
}
