//! x86-64 page tables with 4 and 5 levels (Intel SDM volume 3, chapter "Paging").

use super::entry::{pack_absent, unpack_stored};
use super::{Entry, Leaf, LeafFlags, Level, MAX_LEVELS, PagingFormat};
use crate::addr::{PAGE_SIZE, VirtAddr};
use crate::pfn::Pfn;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// Page size: the entry above level 0 is a leaf.
const LARGE: u64 = 1 << 7;
/// Ignored by the hardware; carries [`LeafFlags::SPECIAL`].
const SPECIAL: u64 = 1 << 9;
const NO_EXECUTE: u64 = 1 << 63;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

// The bits of an entry are those of [`LeafFlags`], moved by so many places, that of EXECUTE inverted: a few
// shifts are shorter than a choice for each.
const MMU_BITS: u32 = 2;
const SPECIAL_BIT: u32 = 4;
const EXECUTE_BIT: u32 = 61;
const _: () = {
    assert!(LeafFlags::READ.bits() as u64 == PRESENT && LeafFlags::WRITE.bits() as u64 == WRITABLE);
    assert!((LeafFlags::ACCESSED.bits() as u64) << MMU_BITS == ACCESSED);
    assert!((LeafFlags::DIRTY.bits() as u64) << MMU_BITS == DIRTY);
    assert!((LeafFlags::SPECIAL.bits() as u64) << SPECIAL_BIT == SPECIAL);
    assert!((LeafFlags::EXECUTE.bits() as u64) << EXECUTE_BIT == NO_EXECUTE);
};

// Always, as its callers: it is known there which kind of entry it is.
#[inline(always)]
fn encode(entry: Entry, level: Level) -> u64 {
    match entry {
        Entry::Table(pfn) => pfn.to_phys().0 & FRAME | PRESENT | WRITABLE | USER | ACCESSED,
        Entry::Leaf(leaf) if leaf.flags.contains(LeafFlags::READ) => {
            let flags = u64::from(leaf.flags.bits());
            let mut raw = leaf.pfn.to_phys().0 & FRAME | PRESENT | USER;
            raw |= flags & WRITABLE;
            raw |= flags << MMU_BITS & (ACCESSED | DIRTY);
            raw |= flags << SPECIAL_BIT & SPECIAL;
            raw |= !flags << EXECUTE_BIT & NO_EXECUTE;
            raw | if level > Level::PTE { LARGE } else { 0 }
        }
        absent => encode_absent(pack_absent(absent)),
    }
}

/// With the present bit clear the hardware ignores the other 63. But processors with the L1 terminal fault
/// (CVE-2018-3620) load speculatively from the frame that such an entry seems to name, and a program could
/// choose that frame by what it swaps out. So the bits of the frame are stored inverted. They name frames in
/// the upper half of what the processor can address, where no RAM is, if frames and slots have numbers of the
/// lower half.
fn encode_absent(packed: u64) -> u64 {
    if packed == 0 { 0 } else { packed << 1 ^ FRAME }
}

/// The inverse of [`encode_absent`].
fn decode_absent(raw: u64) -> Entry {
    if raw == 0 { Entry::None } else { unpack_stored((raw ^ FRAME) >> 1) }
}

#[inline]
fn frame_of(raw: u64) -> Pfn {
    Pfn((raw & FRAME) >> 12)
}

fn decode(raw: u64, level: Level) -> Entry {
    if raw & PRESENT == 0 {
        return decode_absent(raw);
    }
    let pfn = frame_of(raw);
    if level > Level::PTE && raw & LARGE == 0 {
        return Entry::Table(pfn);
    }
    let mut flags = PRESENT | raw & WRITABLE;
    flags |= (raw & (ACCESSED | DIRTY)) >> MMU_BITS;
    flags |= (raw & SPECIAL) >> SPECIAL_BIT;
    flags |= (!raw & NO_EXECUTE) >> EXECUTE_BIT;
    Entry::Leaf(Leaf { pfn, flags: LeafFlags::from_bits_retain(flags as u16) })
}

/// x86-64 with `LEVELS` levels of tables, 4 or 5 (LA57). User space has the lower half of the addresses, less
/// one guard page.
#[derive(Clone, Copy, Debug)]
pub struct X86_64<const LEVELS: u8>;

/// x86-64 with 4 levels: 48 address bits.
pub type X86_64Level4 = X86_64<4>;
/// x86-64 with 5 levels: 57 address bits.
pub type X86_64Level5 = X86_64<5>;

// SAFETY: 9 index bits at each of 4 or 5 levels, and a program's half of the addresses; the tests of `paging`
// hold the functions against each other.
unsafe impl<const LEVELS: u8> PagingFormat for X86_64<LEVELS> {
    const LEVELS: u8 = {
        assert!(LEVELS == 4 || LEVELS == 5, "x86-64 has 4 or 5 levels");
        LEVELS
    };
    const INDEX_BITS: [u32; MAX_LEVELS] = [9; MAX_LEVELS];
    const ACCESSED: u64 = ACCESSED;
    const DIRTY: u64 = DIRTY;
    const IDENTITY: u64 = PRESENT | SPECIAL | FRAME;
    const NAME: &'static str = if LEVELS == 4 { "x86-64, 4 levels" } else { "x86-64, 5 levels" };
    const USER_END: VirtAddr = VirtAddr((1 << (11 + 9 * LEVELS as u32)) - PAGE_SIZE);

    #[inline]
    fn leaf_allowed(level: Level) -> bool {
        level.0 <= 2
    }

    #[inline(always)]
    fn encode(entry: Entry, level: Level) -> u64 {
        encode(entry, level)
    }

    #[inline]
    fn decode(raw: u64, level: Level) -> Entry {
        decode(raw, level)
    }

    #[inline]
    fn is_present_leaf(raw: u64, level: Level) -> bool {
        raw & PRESENT != 0 && (level == Level::PTE || raw & LARGE != 0)
    }

    #[inline]
    fn is_table(raw: u64, level: Level) -> bool {
        raw & (PRESENT | LARGE) == PRESENT && level > Level::PTE
    }

    #[inline]
    fn table_of(raw: u64, level: Level) -> Option<Pfn> {
        Self::is_table(raw, level).then(|| frame_of(raw))
    }

    #[inline]
    fn frame_of(raw: u64) -> Pfn {
        frame_of(raw)
    }

    #[inline]
    fn without_write(raw: u64) -> u64 {
        raw & !WRITABLE
    }

    #[inline]
    fn frames_on(raw: u64, pages: u64) -> u64 {
        raw.wrapping_add(pages * PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::{PteMarker, SwapEntry};

    #[test]
    fn what_is_absent_names_no_frame_of_ram() {
        // Processors with the fault have at least 44 address bits, and their RAM is in the lower half.
        let upper_half = 1u64 << 43;
        let swap = |slot| Entry::Swap(SwapEntry { device: 63, slot, exclusive: true });
        let hidden = |pfn| Entry::Leaf(Leaf { pfn: Pfn(pfn), flags: LeafFlags::all() - LeafFlags::READ });
        let numbers = (0..32).map(|bit| (1u64 << bit) - 1).chain((0..31).map(|bit| 1 << bit));
        let markers = [Entry::Marker(PteMarker::Guard), Entry::Marker(PteMarker::Poisoned)];
        for entry in numbers.flat_map(|number| [swap(number), hidden(number)]).chain(markers) {
            let raw = X86_64Level4::encode(entry, Level::PTE);
            assert_eq!(raw & 1, 0, "{entry:?} is present: {raw:#x}");
            assert_eq!(raw & upper_half, upper_half, "{entry:?} is {raw:#x}");
        }
    }

    #[test]
    fn only_zero_is_none() {
        for bit in 0..64 {
            for raw in [1 << bit, u64::MAX << bit, u64::MAX >> bit, (u64::MAX << bit) & 0x000f_ffff_ffff_f000]
            {
                assert_eq!(X86_64Level4::decode(raw, Level::PTE) == Entry::None, raw == 0, "{raw:#x}");
            }
        }
    }
}
