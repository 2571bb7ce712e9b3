//! Page-table entries: this one enum and, for each format, one decoder.

use crate::pfn::Pfn;
use bitflags::bitflags;

bitflags! {
    /// Permissions and state of a leaf.
    ///
    /// A leaf without [`READ`](Self::READ) is not present to the MMU (any access faults) but still holds its
    /// frame: this is how `PROT_NONE` keeps the contents.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct LeafFlags: u16 {
        /// The page may be read; the entry is present.
        const READ = 1 << 0;
        /// The page may be written.
        const WRITE = 1 << 1;
        /// Instructions may be fetched from the page.
        const EXECUTE = 1 << 2;
        /// Accessed through this entry (set by the MMU).
        const ACCESSED = 1 << 3;
        /// Dirty: written through this entry (set by the MMU).
        const DIRTY = 1 << 4;
        /// The entry holds no reference to the frame and counts nothing: the shared zero page.
        const SPECIAL = 1 << 5;
        /// A guard page (`MADV_GUARD_INSTALL`) hides the page, which is kept: every access is a segmentation
        /// fault. Never together with [`READ`](Self::READ).
        const GUARD = 1 << 6;
    }
}

/// A mapped page or large page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// First frame.
    pub pfn: Pfn,
    /// Permissions and state.
    pub flags: LeafFlags,
}

/// A page that was swapped out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapEntry {
    /// Number of the swap device, below 64.
    pub device: u8,
    /// Slot on the device, below 2^44.
    pub slot: u64,
    /// Whether no other entry refers to the page, so that it is exclusive after swap-in.
    pub exclusive: bool,
}

/// A marker in place of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PteMarker {
    /// A guard page (`MADV_GUARD_INSTALL`) where no page is kept: every access is a segmentation fault.
    Guard,
    /// The contents were lost; an access gets SIGBUS.
    Poisoned,
}

/// A decoded page-table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Nothing is here.
    None,
    /// A table of the level below.
    Table(Pfn),
    /// A mapped page.
    Leaf(Leaf),
    /// A swapped-out page.
    Swap(SwapEntry),
    /// A marker instead of a page.
    Marker(PteMarker),
}

/// The kind of a non-present entry, as both formats of this crate store it. Zero is reserved for "none".
const KIND_PROTECTED: u64 = 1;
const KIND_SWAP: u64 = 2;
const KIND_MARKER: u64 = 3;

const _: () = assert!(LeafFlags::all().bits() < 1 << 8, "the flags of a leaf are packed into 8 bits");

/// Packs a non-present entry into 60 bits: kind in bits 0..3, the rest above, a frame's number from bit 11
/// on. Formats place it where their hardware ignores it. The payload of a present entry is the format's own
/// business.
pub(super) fn pack_absent(entry: Entry) -> u64 {
    match entry {
        Entry::None | Entry::Table(_) => 0,
        Entry::Leaf(leaf) => KIND_PROTECTED | u64::from(leaf.flags.bits()) << 3 | leaf.pfn.0 << 11,
        Entry::Swap(swap) => {
            KIND_SWAP | u64::from(swap.exclusive) << 3 | u64::from(swap.device) << 4 | swap.slot << 10
        }
        Entry::Marker(PteMarker::Guard) => KIND_MARKER,
        Entry::Marker(PteMarker::Poisoned) => KIND_MARKER | 1 << 3,
    }
}

/// The inverse of [`pack_absent`]. A pattern that no entry packs to reads as poisoned: it must never be taken
/// for an empty slot, since something was written there.
pub(super) fn unpack_absent(packed: u64) -> Entry {
    if packed == 0 { Entry::None } else { unpack_stored(packed) }
}

/// The same of an entry that something was written to.
pub(super) fn unpack_stored(packed: u64) -> Entry {
    match packed & 7 {
        KIND_PROTECTED => Entry::Leaf(Leaf {
            pfn: Pfn(packed >> 11),
            flags: LeafFlags::from_bits_truncate(u16::from((packed >> 3) as u8)),
        }),
        KIND_SWAP => Entry::Swap(SwapEntry {
            device: (packed >> 4) as u8 & 63,
            slot: packed >> 10,
            exclusive: packed & 8 != 0,
        }),
        KIND_MARKER if packed & 8 == 0 => Entry::Marker(PteMarker::Guard),
        _ => Entry::Marker(PteMarker::Poisoned),
    }
}
