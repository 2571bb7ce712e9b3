//! All switches at one moment, and what follows from them.

use super::words::{HugeDefrag, HugeEnabled, SizeEnabled};
use core::fmt;
use quire_arch::{Order, OrderSet};
use quire_vma::{HugeDisable, VmFlags};

/// What a large folio is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HugeUse {
    /// A page fault. Any order; the block around the address must lie in the mapping ([`OrderSet::around`]).
    Fault,
    /// The daemon that collapses page tables. The PMD's order only; the mapping must have private pages.
    Khugepaged,
    /// A program's own request to collapse (`MADV_COLLAPSE`). As `khugepaged`, but the switches do not
    /// matter.
    Collapse,
    /// What smaps shows as `THPeligible`: whether there is any order with a block in the mapping
    /// ([`OrderSet::fitting`]).
    Smaps,
}

/// How hard to try for a large folio, from cheap to dear.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HugeEffort {
    /// Take what is free.
    Free,
    /// That, and if there is none, wake kswapd.
    Wake,
    /// Reclaim and compact directly, but give up early.
    Try,
    /// Reclaim and compact directly, and try again.
    Insist,
}

impl HugeEffort {
    /// Whether an allocation may drain the CPUs' lists before it fails.
    #[inline]
    pub const fn may_drain(self) -> bool {
        matches!(self, Self::Try | Self::Insist)
    }
}

/// All switches at one moment: the words of `enabled`, `defrag` and each size, and the two that are on or
/// off.
///
/// It is one word, so that a fault loads it once and never sees a mixture of two policies.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct HugePolicy(u64);

/// Sizes with a word of their own: three sets of orders. An order is in one of them at most.
const ALWAYS: u32 = 0;
const MADVISE: u32 = 16;
const INHERIT: u32 = 32;
/// The common words, as the numbers of the variants.
const ENABLED: u32 = 48;
const DEFRAG: u32 = 52;
/// One bit each.
const ZERO_PAGE: u32 = 56;
const SHRINK_UNDERUSED: u32 = 57;

const _: () = assert!(HugeEnabled::ALL.len() <= 16 && HugeDefrag::ALL.len() <= 16);

impl HugePolicy {
    /// Linux's defaults when built for `madvise`: programs get large folios where they ask for them,
    /// PMD-sized only. `use_zero_page` and `shrink_underused` are on.
    pub const MADVISE: Self = Self(0)
        .with_enabled(HugeEnabled::Madvise)
        .with_defrag(HugeDefrag::Madvise)
        .with_sizes(OrderSet::PMD, SizeEnabled::Inherit)
        .with_zero_page(true)
        .with_shrink_underused(true);

    #[inline]
    pub(super) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    #[inline]
    pub(super) const fn word(self) -> u64 {
        self.0
    }

    const fn with_bits(self, shift: u32, width: u32, bits: u64) -> Self {
        let mask = ((1 << width) - 1) << shift;
        Self((self.0 & !mask) | (bits << shift))
    }

    const fn sizes(self, shift: u32) -> OrderSet {
        OrderSet::from_bits((self.0 >> shift) as u16)
    }

    /// With another common word.
    #[must_use]
    #[inline]
    pub const fn with_enabled(self, enabled: HugeEnabled) -> Self {
        self.with_bits(ENABLED, 4, enabled as u64)
    }

    /// The common word.
    #[doc(hidden)]
    #[inline]
    pub const fn enabled(self) -> HugeEnabled {
        HugeEnabled::ALL[(self.0 >> ENABLED & 0xf) as usize]
    }

    /// With another word on what a fault does when none is free.
    #[must_use]
    #[inline]
    pub const fn with_defrag(self, defrag: HugeDefrag) -> Self {
        self.with_bits(DEFRAG, 4, defrag as u64)
    }

    /// What a fault does when none is free.
    #[doc(hidden)]
    #[inline]
    pub const fn defrag(self) -> HugeDefrag {
        HugeDefrag::ALL[(self.0 >> DEFRAG & 0xf) as usize]
    }

    /// With another word for each order of `orders` that anonymous memory comes in.
    #[must_use]
    #[inline]
    pub const fn with_sizes(self, orders: OrderSet, word: SizeEnabled) -> Self {
        let orders = orders.intersection(OrderSet::ANONYMOUS);
        self.with_set(ALWAYS, orders, matches!(word, SizeEnabled::Always))
            .with_set(MADVISE, orders, matches!(word, SizeEnabled::Madvise))
            .with_set(INHERIT, orders, matches!(word, SizeEnabled::Inherit))
    }

    /// With `orders` in the set at `shift`, or without.
    const fn with_set(self, shift: u32, orders: OrderSet, is_in: bool) -> Self {
        let others = self.sizes(shift).difference(orders);
        let set = if is_in { others.union(orders) } else { others };
        self.with_bits(shift, 16, set.bits() as u64)
    }

    /// The word for folios of `order`; [`SizeEnabled::Never`] for an order that anonymous memory does not
    /// come in.
    #[doc(hidden)]
    #[inline]
    pub const fn size(self, order: Order) -> SizeEnabled {
        if self.sizes(ALWAYS).contains(order) {
            SizeEnabled::Always
        } else if self.sizes(MADVISE).contains(order) {
            SizeEnabled::Madvise
        } else if self.sizes(INHERIT).contains(order) {
            SizeEnabled::Inherit
        } else {
            SizeEnabled::Never
        }
    }

    /// With the huge zero page, or without.
    #[must_use]
    #[inline]
    pub const fn with_zero_page(self, on: bool) -> Self {
        self.with_bits(ZERO_PAGE, 1, on as u64)
    }

    /// Whether a read fault maps the shared huge zero page (`use_zero_page`).
    #[doc(hidden)]
    #[inline]
    pub const fn zero_page(self) -> bool {
        self.0 >> ZERO_PAGE & 1 != 0
    }

    /// With the splitting of underused folios, or without.
    #[must_use]
    #[inline]
    pub const fn with_shrink_underused(self, on: bool) -> Self {
        self.with_bits(SHRINK_UNDERUSED, 1, on as u64)
    }

    /// Whether folios that are mostly zeros are to be split when memory runs short (`shrink_underused`). Kept
    /// for programs that set it: there is no such split.
    #[doc(hidden)]
    #[inline]
    pub const fn shrink_underused(self) -> bool {
        self.0 >> SHRINK_UNDERUSED & 1 != 0
    }

    /// The orders that `purpose` may use in a private anonymous mapping with `flags`, wherever in it. The set
    /// tells which of them fit.
    ///
    /// A stack is treated as any other memory, as in Linux. (There, `exec` keeps large folios from the stack
    /// that it still builds; here a loader of programs can set NOHUGEPAGE.)
    #[doc(hidden)]
    #[inline]
    pub fn orders(self, purpose: HugeUse, flags: VmFlags, disable: HugeDisable) -> OrderSet {
        let advised = flags.contains(VmFlags::HUGEPAGE);
        let enabled = match purpose {
            HugeUse::Collapse => OrderSet::ANONYMOUS,
            HugeUse::Fault | HugeUse::Khugepaged | HugeUse::Smaps => self.enabled_orders(advised),
        };
        // Most machines and mappings leave here.
        if enabled.is_empty() || flags.contains(VmFlags::NOHUGEPAGE) {
            return OrderSet::EMPTY;
        }
        let disabled = is_disabled(disable, advised || purpose == HugeUse::Collapse);
        let collapses = matches!(purpose, HugeUse::Khugepaged | HugeUse::Collapse);
        if disabled || collapses && flags.intersects(VmFlags::SPECIAL) {
            return OrderSet::EMPTY;
        }
        if collapses { enabled.intersection(OrderSet::PMD) } else { enabled }
    }

    /// The orders that `purpose` may use in a mapping with `flags` of a file that is not shared memory, and
    /// that none has open for writing, where such files get large folios at all. As in Linux the words of the
    /// sizes do not matter; what smaps shows is any order.
    #[doc(hidden)]
    pub fn read_only_file_orders(self, purpose: HugeUse, flags: VmFlags, disable: HugeDisable) -> OrderSet {
        let advised = flags.contains(VmFlags::HUGEPAGE);
        let (is_on, orders) = match (purpose, self.enabled()) {
            (HugeUse::Fault, _) => return OrderSet::EMPTY,
            (HugeUse::Collapse, _) => (true, OrderSet::PMD),
            (HugeUse::Khugepaged, word) => (is_enabled(word, advised), OrderSet::PMD),
            (HugeUse::Smaps, word) => (is_enabled(word, advised), OrderSet::SHMEM),
        };
        let disabled = is_disabled(disable, advised || purpose == HugeUse::Collapse);
        let is_special = purpose != HugeUse::Smaps && flags.intersects(VmFlags::SPECIAL);
        if !is_on || disabled || is_special || flags.contains(VmFlags::NOHUGEPAGE) {
            return OrderSet::EMPTY;
        }
        orders
    }

    /// The orders that the switches allow in a mapping that is `advised` to have some, or not.
    #[doc(hidden)]
    #[inline]
    pub const fn enabled_orders(self, advised: bool) -> OrderSet {
        let mut orders = self.sizes(ALWAYS);
        if advised {
            orders = orders.union(self.sizes(MADVISE));
        }
        if is_enabled(self.enabled(), advised) { orders.union(self.sizes(INHERIT)) } else { orders }
    }

    /// How hard a fault in a mapping with `flags` tries, for any order.
    #[doc(hidden)]
    #[inline]
    pub const fn fault_effort(self, flags: VmFlags) -> HugeEffort {
        match (self.defrag(), flags.contains(VmFlags::HUGEPAGE)) {
            (HugeDefrag::Always | HugeDefrag::DeferMadvise | HugeDefrag::Madvise, true) => HugeEffort::Insist,
            (HugeDefrag::Always, false) => HugeEffort::Try,
            (HugeDefrag::Defer, _) | (HugeDefrag::DeferMadvise, false) => HugeEffort::Wake,
            (HugeDefrag::Madvise, false) | (HugeDefrag::Never, _) => HugeEffort::Free,
        }
    }
}

impl Default for HugePolicy {
    /// [`HugePolicy::MADVISE`]: memory that was not asked for is not spent.
    fn default() -> Self {
        Self::MADVISE
    }
}

impl fmt::Debug for HugePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HugePolicy")
            .field("enabled", &self.enabled())
            .field("defrag", &self.defrag())
            .field("always", &self.sizes(ALWAYS))
            .field("madvise", &self.sizes(MADVISE))
            .field("inherit", &self.sizes(INHERIT))
            .field("zero_page", &self.zero_page())
            .field("shrink_underused", &self.shrink_underused())
            .finish()
    }
}

/// Whether a mapping with `flags` may have no PMD entry for a folio of a file, by what the process or the
/// program said of it (Linux's `vma_thp_disabled`). The switches do not matter there.
#[doc(hidden)]
pub fn is_huge_disabled(flags: VmFlags, disable: HugeDisable) -> bool {
    flags.contains(VmFlags::NOHUGEPAGE) || is_disabled(disable, flags.contains(VmFlags::HUGEPAGE))
}

/// What the common word says of a mapping that is `advised` to have some, or not.
const fn is_enabled(word: HugeEnabled, advised: bool) -> bool {
    match word {
        HugeEnabled::Always => true,
        HugeEnabled::Madvise => advised,
        HugeEnabled::Never => false,
    }
}

/// Whether a process gets no large folios, where it asked for them or not.
fn is_disabled(disable: HugeDisable, asked: bool) -> bool {
    match disable {
        HugeDisable::No => false,
        HugeDisable::ExceptAdvised => !asked,
        HugeDisable::Completely => true,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PLAIN: VmFlags = VmFlags::READ.union(VmFlags::WRITE);
    const ADVISED: VmFlags = PLAIN.union(VmFlags::HUGEPAGE);
    const REFUSED: VmFlags = PLAIN.union(VmFlags::NOHUGEPAGE);
    const KIB64: OrderSet = OrderSet::from_bits(1 << 4);

    fn faults(policy: HugePolicy, flags: VmFlags) -> OrderSet {
        policy.orders(HugeUse::Fault, flags, HugeDisable::No)
    }

    #[test]
    fn switches_do_not_disturb_each_other() {
        let mut policy = HugePolicy::default();
        assert_eq!(policy.enabled(), HugeEnabled::Madvise);
        assert_eq!(policy.defrag(), HugeDefrag::Madvise);
        assert!(policy.zero_page() && policy.shrink_underused());
        for order in Order::ALL {
            let inherits = order == Order::PMD;
            assert_eq!(policy.size(order), if inherits { SizeEnabled::Inherit } else { SizeEnabled::Never });
        }
        for &enabled in HugeEnabled::ALL {
            for &defrag in HugeDefrag::ALL {
                for &size in SizeEnabled::ALL {
                    for (zero, shrink) in [(false, false), (false, true), (true, false), (true, true)] {
                        policy = policy
                            .with_shrink_underused(shrink)
                            .with_zero_page(zero)
                            .with_sizes(KIB64, size)
                            .with_defrag(defrag)
                            .with_enabled(enabled);
                        assert_eq!((policy.enabled(), policy.defrag()), (enabled, defrag));
                        assert_eq!((policy.zero_page(), policy.shrink_underused()), (zero, shrink));
                        for order in Order::ALL {
                            let expected = match order.get() {
                                4 => size,
                                9 => SizeEnabled::Inherit,
                                _ => SizeEnabled::Never,
                            };
                            assert_eq!(policy.size(order), expected, "order {order} of {policy:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_that_anonymous_memory_does_not_have_cannot_be_switched_on() {
        let policy = HugePolicy::default().with_sizes(OrderSet::from_bits(u16::MAX), SizeEnabled::Always);
        assert_eq!(faults(policy, PLAIN), OrderSet::ANONYMOUS);
        assert_eq!(policy.size(Order::ZERO), SizeEnabled::Never);
    }

    /// What Linux 6.18 showed as `THPeligible` and gave to faults, for each common word: plain and advised.
    #[test]
    fn a_size_follows_its_own_word_or_the_common_one() {
        for (enabled, inherited) in [
            (HugeEnabled::Always, [true, true]),
            (HugeEnabled::Madvise, [false, true]),
            (HugeEnabled::Never, [false, false]),
        ] {
            for (size, allowed) in [
                (SizeEnabled::Always, [true, true]),
                (SizeEnabled::Inherit, inherited),
                (SizeEnabled::Madvise, [false, true]),
                (SizeEnabled::Never, [false, false]),
            ] {
                let policy = HugePolicy::default().with_enabled(enabled).with_sizes(KIB64, size);
                for purpose in [HugeUse::Fault, HugeUse::Smaps] {
                    for (flags, allowed) in [(PLAIN, allowed[0]), (ADVISED, allowed[1]), (REFUSED, false)] {
                        let orders = policy.orders(purpose, flags, HugeDisable::No);
                        assert_eq!(orders.intersection(KIB64).is_empty(), !allowed, "{policy:?}, {flags:?}");
                    }
                }
                assert_eq!(faults(policy, ADVISED).contains(Order::PMD), inherited[1]);
                assert_eq!(faults(policy, PLAIN).contains(Order::PMD), inherited[0]);
            }
        }
    }

    #[test]
    fn collapses_make_pmd_folios_only_and_madv_collapse_ignores_the_switches() {
        let always = HugePolicy::default()
            .with_enabled(HugeEnabled::Always)
            .with_sizes(OrderSet::ANONYMOUS, SizeEnabled::Inherit);
        let never = HugePolicy::default().with_sizes(OrderSet::ANONYMOUS, SizeEnabled::Never);
        let orders = |policy: HugePolicy, purpose, flags| policy.orders(purpose, flags, HugeDisable::No);
        assert_eq!(orders(always, HugeUse::Khugepaged, PLAIN), OrderSet::PMD);
        assert_eq!(orders(never, HugeUse::Khugepaged, ADVISED), OrderSet::EMPTY);
        for policy in [always, never] {
            assert_eq!(orders(policy, HugeUse::Collapse, PLAIN), OrderSet::PMD);
            assert_eq!(orders(policy, HugeUse::Collapse, REFUSED), OrderSet::EMPTY);
        }
        for special in [VmFlags::IO, VmFlags::PFNMAP, VmFlags::DONTEXPAND] {
            for purpose in [HugeUse::Khugepaged, HugeUse::Collapse] {
                assert_eq!(orders(always, purpose, PLAIN | special), OrderSet::EMPTY);
            }
            assert_eq!(orders(always, HugeUse::Fault, PLAIN | special), OrderSet::ANONYMOUS);
        }
    }

    /// As Linux's `__thp_vma_allowable_orders` and `file_thp_enabled` say, by reading.
    #[test]
    fn files_that_are_only_read_follow_the_common_word() {
        let policy = |word| {
            let sizes = OrderSet::ANONYMOUS;
            HugePolicy::default().with_enabled(word).with_sizes(sizes, SizeEnabled::Never)
        };
        let orders =
            |word, purpose, flags, disable| policy(word).read_only_file_orders(purpose, flags, disable);
        for (word, is_on) in [
            (HugeEnabled::Always, [true, true, false]),
            (HugeEnabled::Madvise, [false, true, false]),
            (HugeEnabled::Never, [false; 3]),
        ] {
            for (flags, is_on) in [PLAIN, ADVISED, REFUSED].into_iter().zip(is_on) {
                let of = |purpose| orders(word, purpose, flags, HugeDisable::No);
                assert_eq!(of(HugeUse::Khugepaged) == OrderSet::PMD, is_on);
                assert_eq!(of(HugeUse::Smaps) == OrderSet::SHMEM, is_on);
                assert_eq!(of(HugeUse::Collapse).is_empty(), flags == REFUSED);
                assert_eq!(of(HugeUse::Fault), OrderSet::EMPTY);
            }
        }
        let always =
            |purpose, flags, disable| orders(HugeEnabled::Always, purpose, flags, disable).is_empty();
        assert!(always(HugeUse::Khugepaged, PLAIN, HugeDisable::ExceptAdvised));
        assert!(!always(HugeUse::Khugepaged, ADVISED, HugeDisable::ExceptAdvised));
        assert!(!always(HugeUse::Collapse, PLAIN, HugeDisable::ExceptAdvised));
        assert!(always(HugeUse::Collapse, ADVISED, HugeDisable::Completely));
        assert!(always(HugeUse::Collapse, PLAIN | VmFlags::IO, HugeDisable::No));
        assert!(!always(HugeUse::Smaps, PLAIN | VmFlags::IO, HugeDisable::No));
    }

    #[test]
    fn a_process_can_disable_large_folios() {
        let policy = HugePolicy::default().with_enabled(HugeEnabled::Always);
        for purpose in [HugeUse::Fault, HugeUse::Khugepaged, HugeUse::Collapse, HugeUse::Smaps] {
            let orders = |flags, disable| policy.orders(purpose, flags, disable);
            let unadvised = if purpose == HugeUse::Collapse { OrderSet::PMD } else { OrderSet::EMPTY };
            for flags in [PLAIN, ADVISED] {
                assert_eq!(orders(flags, HugeDisable::No), OrderSet::PMD);
                assert_eq!(orders(flags, HugeDisable::Completely), OrderSet::EMPTY);
            }
            assert_eq!(orders(PLAIN, HugeDisable::ExceptAdvised), unadvised);
            assert_eq!(orders(ADVISED, HugeDisable::ExceptAdvised), OrderSet::PMD);
            assert_eq!(orders(REFUSED, HugeDisable::ExceptAdvised), OrderSet::EMPTY);
        }
    }

    #[test]
    fn a_fault_tries_as_hard_as_it_was_told() {
        for (defrag, plain, advised) in [
            (HugeDefrag::Always, HugeEffort::Try, HugeEffort::Insist),
            (HugeDefrag::Defer, HugeEffort::Wake, HugeEffort::Wake),
            (HugeDefrag::DeferMadvise, HugeEffort::Wake, HugeEffort::Insist),
            (HugeDefrag::Madvise, HugeEffort::Free, HugeEffort::Insist),
            (HugeDefrag::Never, HugeEffort::Free, HugeEffort::Free),
        ] {
            let policy = HugePolicy::default().with_defrag(defrag);
            assert_eq!(
                (policy.fault_effort(PLAIN), policy.fault_effort(ADVISED)),
                (plain, advised),
                "{defrag:?}"
            );
        }
    }
}
