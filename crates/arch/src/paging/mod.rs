//! Page-table formats behind one level-generic trait.
//!
//! A format says how many levels there are, how many index bits each level has, and how an [`Entry`] is
//! written in 64 bits. Every walker in Quire is written once against this trait and is tested with an
//! invented format too ([`invented`]), so that no x86 constant can hide in it.

mod entry;
pub mod invented;
mod x86_64;

pub use entry::{Entry, Leaf, LeafFlags, PteMarker, SwapEntry};
pub use x86_64::{X86_64, X86_64Level4, X86_64Level5};

use crate::addr::{PAGE_SHIFT, VirtAddr, VirtRange};
use crate::order::Order;
use crate::pfn::Pfn;

/// A level of the page tables, counted from the bottom: 0 is the table whose entries map base pages (Linux's
/// PTE table), 1 the PMD's, 2 the PUD's, and so on up to the root at [`PagingFormat::LEVELS`]` - 1`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Level(pub u8);

impl Level {
    /// The level whose entries map base pages.
    pub const PTE: Self = Self(0);
    /// The level whose entries map the tables of [`Level::PTE`], or 2 MiB pages.
    pub const PMD: Self = Self(1);
    /// The level above, whose entries map the tables of [`Level::PMD`], or 1 GiB pages.
    pub const PUD: Self = Self(2);

    /// The level above.
    #[doc(hidden)]
    #[inline]
    pub const fn up(self) -> Self {
        Self(self.0 + 1)
    }

    /// The level below, or `None` at the bottom.
    #[inline]
    pub const fn down(self) -> Option<Self> {
        match self.0.checked_sub(1) {
            Some(level) => Some(Self(level)),
            None => None,
        }
    }
}

/// How a machine lays out its page tables.
///
/// Every table is one base page of `u64` entries, of which the first [`entries`](Self::entries) are used. An
/// all-zero table is empty: `decode(0, level)` is [`Entry::None`] at every level.
///
/// # Safety
///
/// Walkers go where entries lead, and frames are freed as entries say. An implementation guarantees that
/// - every table is smaller than a page, or as large: there are 1 to [`MAX_LEVELS`] levels, of 1 to 9 index
///   bits, and [`USER_END`](Self::USER_END) is page-aligned, not 0, and within what the root covers;
/// - [`decode`](Self::decode) returns what [`encode`](Self::encode) was given, also after the MMU set
///   [`ACCESSED`](Self::ACCESSED) or [`DIRTY`](Self::DIRTY), and an all-zero entry is none;
/// - the other functions agree with these two, as their texts say, and all are pure;
/// - provided functions are not replaced by ones with other results.
pub unsafe trait PagingFormat: Copy + Send + Sync + 'static {
    /// Number of levels, at most [`MAX_LEVELS`].
    const LEVELS: u8;
    /// Index bits of each level, from the bottom, the first `LEVELS` of them used; each at most 9.
    const INDEX_BITS: [u32; MAX_LEVELS];
    /// Bit that the MMU sets in a present leaf when it is used. An MMU in software sets it, and
    /// [`DIRTY`](Self::DIRTY), in one step with the check that the entry is still the same: a
    /// compare-exchange. Without this bit reclaim evicts pages that are in use.
    const ACCESSED: u64;
    /// Bit that the MMU sets in a present leaf when it is written through. Without it a page that is written
    /// after MADV_FREE may be lost.
    const DIRTY: u64;
    /// Bits of a present leaf that say what it maps: with the rest cleared, two leaves that map the same
    /// frame as the same kind of page are equal. Permissions, accessed and dirty are not among them.
    const IDENTITY: u64;
    /// Name for people, e.g. in reports.
    const NAME: &'static str;
    /// End of the addresses that a user program may map (Linux's `TASK_SIZE_MAX`).
    const USER_END: VirtAddr;

    /// Whether a leaf may stand at `level`.
    fn leaf_allowed(level: Level) -> bool;

    /// The 64-bit form of `entry` at `level`.
    fn encode(entry: Entry, level: Level) -> u64;

    /// Decodes the 64-bit form `raw` at `level`. Every value decodes to something.
    fn decode(raw: u64, level: Level) -> Entry;

    /// Whether `raw` is a leaf that the MMU can use. Cheaper than [`decode`](Self::decode).
    fn is_present_leaf(raw: u64, level: Level) -> bool;

    /// Whether `raw`, an entry at `level`, leads to a table. A format may have a cheaper way than
    /// [`decode`](Self::decode).
    #[doc(hidden)]
    #[inline]
    fn is_table(raw: u64, level: Level) -> bool {
        matches!(Self::decode(raw, level), Entry::Table(_))
    }

    /// The table that `raw`, an entry at `level`, leads to.
    #[doc(hidden)]
    #[inline]
    fn table_of(raw: u64, level: Level) -> Option<Pfn> {
        if let Entry::Table(pfn) = Self::decode(raw, level) { Some(pfn) } else { None }
    }

    /// The frame that the present leaf `raw` maps. A format may have a cheaper way than
    /// [`decode`](Self::decode).
    #[doc(hidden)]
    #[inline]
    fn frame_of(raw: u64) -> Pfn {
        match Self::decode(raw, Level::PTE) {
            Entry::Leaf(leaf) => leaf.pfn,
            _ => Pfn(0),
        }
    }

    /// The present leaf `raw` with writes forbidden.
    fn without_write(raw: u64) -> u64;

    /// The present leaf `raw` of [`Level::PTE`] for the frame that lies `pages` behind its own, with the same
    /// bits.
    fn frames_on(raw: u64, pages: u64) -> u64;

    /// The root's level.
    #[inline]
    fn root_level() -> Level {
        Level(Self::LEVELS - 1)
    }

    /// Entries in a table at `level`.
    #[inline]
    fn entries(level: Level) -> usize {
        1 << Self::INDEX_BITS[level.0 as usize]
    }

    /// Entries of a table at `level` that may lead to a program's memory: all of them, but in the root only
    /// those for addresses below [`USER_END`](Self::USER_END). The root's other entries are the kernel's
    /// half.
    #[inline]
    fn user_entries(level: Level) -> usize {
        if level == Self::root_level() {
            Self::index(VirtAddr(Self::USER_END.0 - 1), level) + 1
        } else {
            Self::entries(level)
        }
    }

    /// Log2 of the bytes that one entry at `level` covers.
    #[doc(hidden)]
    #[inline]
    fn shift(level: Level) -> u32 {
        let mut shift = PAGE_SHIFT;
        let mut below = 0;
        while below < level.0 as usize {
            shift += Self::INDEX_BITS[below];
            below += 1;
        }
        shift
    }

    /// Bytes that one entry at `level` covers.
    #[inline]
    fn entry_bytes(level: Level) -> u64 {
        1 << Self::shift(level)
    }

    /// Bytes that a whole table at `level` covers.
    #[doc(hidden)]
    #[inline]
    fn table_bytes(level: Level) -> u64 {
        1 << (Self::shift(level) + Self::INDEX_BITS[level.0 as usize])
    }

    /// Index of the entry for `addr` in a table at `level`.
    #[inline]
    fn index(addr: VirtAddr, level: Level) -> usize {
        (addr.0 >> Self::shift(level)) as usize & (Self::entries(level) - 1)
    }

    /// The order of a leaf at `level`, or `None` where that is larger than any block.
    #[doc(hidden)]
    #[inline]
    fn leaf_order(level: Level) -> Option<Order> {
        Order::new((Self::shift(level) - PAGE_SHIFT) as u8)
    }

    /// The addresses that the table at `level` which covers `addr` is responsible for.
    #[doc(hidden)]
    #[inline]
    fn table_range(addr: VirtAddr, level: Level) -> VirtRange {
        let bytes = Self::table_bytes(level);
        let start = VirtAddr(addr.0 & !(bytes - 1));
        VirtRange::new(start, VirtAddr(start.0.saturating_add(bytes)))
    }
}

/// The most levels that a format may have.
pub const MAX_LEVELS: usize = 5;

#[cfg(test)]
mod tests {
    use super::invented::Invented3;
    use super::*;
    use proptest::prelude::*;

    fn any_entry(level: Level, leaf: bool) -> BoxedStrategy<Entry> {
        let pfn = (0u64..1 << 36).prop_map(Pfn);
        let flags = any::<u16>().prop_map(LeafFlags::from_bits_truncate);
        // A page that a guard hides is never present.
        let flags = flags
            .prop_map(|flags| if flags.contains(LeafFlags::GUARD) { flags - LeafFlags::READ } else { flags });
        let mut choices = std::vec![Just(Entry::None).boxed()];
        if level > Level::PTE {
            choices.push(pfn.clone().prop_map(Entry::Table).boxed());
        }
        if leaf {
            choices
                .push((pfn.clone(), flags).prop_map(|(pfn, flags)| Entry::Leaf(Leaf { pfn, flags })).boxed());
        }
        choices.push(
            (0u8..64, 0u64..1 << 44, any::<bool>())
                .prop_map(|(device, slot, exclusive)| Entry::Swap(SwapEntry { device, slot, exclusive }))
                .boxed(),
        );
        choices.push(Just(Entry::Marker(PteMarker::Guard)).boxed());
        choices.push(Just(Entry::Marker(PteMarker::Poisoned)).boxed());
        proptest::strategy::Union::new(choices).boxed()
    }

    fn round_trips<F: PagingFormat>() -> BoxedStrategy<(Entry, Level)> {
        (0..F::LEVELS)
            .prop_flat_map(|level| {
                let level = Level(level);
                any_entry(level, F::leaf_allowed(level)).prop_map(move |entry| (entry, level))
            })
            .boxed()
    }

    fn geometry_is_sound<F: PagingFormat>() {
        let mut bits = PAGE_SHIFT;
        for level in (0..F::LEVELS).map(Level) {
            assert!(F::INDEX_BITS[level.0 as usize] <= 9);
            assert_eq!(F::shift(level), bits);
            bits += F::INDEX_BITS[level.0 as usize];
            assert_eq!(F::table_bytes(level), F::entry_bytes(level) * F::entries(level) as u64);
            assert_eq!(F::decode(0, level), Entry::None);
        }
        assert!(F::USER_END.0 <= 1 << bits);
        assert_eq!(F::ACCESSED & F::DIRTY, 0);
    }

    #[test]
    fn geometries_are_sound() {
        geometry_is_sound::<X86_64Level4>();
        geometry_is_sound::<X86_64Level5>();
        geometry_is_sound::<Invented3>();
    }

    #[test]
    fn user_space_is_the_lower_half_less_a_page() {
        assert_eq!(X86_64Level4::user_entries(Level(3)), 256);
        assert_eq!(X86_64Level5::user_entries(Level(4)), 256);
        assert_eq!(X86_64Level5::user_entries(Level(3)), 512);
        assert_eq!(X86_64Level4::USER_END, VirtAddr(0x7fff_ffff_f000));
        assert_eq!(X86_64Level5::USER_END, VirtAddr(0x00ff_ffff_ffff_f000));
    }

    #[test]
    fn indices_cut_an_address_into_its_fields() {
        let addr = VirtAddr(0x7fff_ffff_e000);
        assert_eq!(X86_64Level4::index(addr, Level(3)), 255);
        assert_eq!(X86_64Level4::index(addr, Level(0)), 510);
        assert_eq!(X86_64Level4::table_range(addr, Level::PTE).len(), 2 << 20);
        assert_eq!(Invented3::entries(Level(2)), 128);
    }

    #[test]
    fn hardware_bits_show_in_the_decoded_flags() {
        let leaf = Leaf { pfn: Pfn(7), flags: LeafFlags::READ | LeafFlags::WRITE };
        let raw = X86_64Level4::encode(Entry::Leaf(leaf), Level::PTE);
        let used = X86_64Level4::decode(raw | X86_64Level4::ACCESSED | X86_64Level4::DIRTY, Level::PTE);
        let Entry::Leaf(used) = used else { panic!("still a leaf") };
        assert_eq!(used.flags, leaf.flags | LeafFlags::ACCESSED | LeafFlags::DIRTY);
    }

    fn the_cheap_look_for_a_table_agrees<F: PagingFormat>() {
        // Every combination of the bits beside the frame number, at every level, with and without one.
        for bits in 0..1u64 << 13 {
            let raw = bits & 0xfff | (bits >> 12) << 63;
            for raw in [raw, raw | 7 << 12] {
                for level in 0..F::LEVELS {
                    let decoded = matches!(F::decode(raw, Level(level)), Entry::Table(_));
                    assert_eq!(F::is_table(raw, Level(level)), decoded, "{raw:#x} at {level}");
                }
            }
        }
    }

    #[test]
    fn tables_are_told_by_their_raw_form() {
        the_cheap_look_for_a_table_agrees::<X86_64Level4>();
        the_cheap_look_for_a_table_agrees::<X86_64Level5>();
        the_cheap_look_for_a_table_agrees::<Invented3>();
    }

    fn runs_are_told_by_their_raw_form<F: PagingFormat>() {
        let leaf = |pfn, flags| F::encode(Entry::Leaf(Leaf { pfn: Pfn(pfn), flags }), Level::PTE);
        let all = LeafFlags::READ | LeafFlags::WRITE | LeafFlags::EXECUTE;
        let used = all | LeafFlags::ACCESSED | LeafFlags::DIRTY;
        assert_eq!(F::frames_on(leaf(40, all), 7), leaf(47, all));
        assert_eq!(F::frame_of(leaf(40, used)), Pfn(40));
        assert_eq!(F::without_write(leaf(40, used)), leaf(40, used - LeafFlags::WRITE));
        assert_eq!(leaf(40, LeafFlags::READ) & F::IDENTITY, leaf(40, used) & F::IDENTITY);
        let special = leaf(40, LeafFlags::READ | LeafFlags::SPECIAL);
        for other in [leaf(41, all), special, leaf(40, LeafFlags::WRITE)] {
            assert_ne!(leaf(40, all) & F::IDENTITY, other & F::IDENTITY);
        }
        assert!(F::is_present_leaf(leaf(40, used), Level::PTE) && !F::is_present_leaf(0, Level::PTE));
        assert!(!F::is_present_leaf(leaf(40, LeafFlags::WRITE), Level::PTE));
        let table = F::encode(Entry::Table(Pfn(3)), Level::PMD);
        assert!(!F::is_present_leaf(table, Level::PMD));
        let huge = F::encode(Entry::Leaf(Leaf { pfn: Pfn(0), flags: all }), Level::PMD);
        assert!(F::is_present_leaf(huge, Level::PMD));
    }

    #[test]
    fn runs_are_told_by_their_raw_form_in_every_format() {
        runs_are_told_by_their_raw_form::<X86_64Level4>();
        runs_are_told_by_their_raw_form::<X86_64Level5>();
        runs_are_told_by_their_raw_form::<Invented3>();
    }

    proptest! {
        #[test]
        fn x86_4_level_entries_round_trip((entry, level) in round_trips::<X86_64Level4>()) {
            prop_assert_eq!(X86_64Level4::decode(X86_64Level4::encode(entry, level), level), entry);
        }

        #[test]
        fn x86_5_level_entries_round_trip((entry, level) in round_trips::<X86_64Level5>()) {
            prop_assert_eq!(X86_64Level5::decode(X86_64Level5::encode(entry, level), level), entry);
        }

        #[test]
        fn invented_entries_round_trip((entry, level) in round_trips::<Invented3>()) {
            prop_assert_eq!(Invented3::decode(Invented3::encode(entry, level), level), entry);
        }

        #[test]
        fn any_word_decodes(raw: u64, level in 0u8..4) {
            X86_64Level4::decode(raw, Level(level));
            Invented3::decode(raw, Level(level.min(2)));
        }
    }
}
