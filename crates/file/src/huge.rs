//! Which folios of shared memory are large: the settings, and what follows from them for one page.

use core::fmt;
use quire_arch::{Order, OrderSet, PAGE_SIZE, named_enum};
// Settings order nothing: a load may see the old value for a while. So no model has to see them.
use core::sync::atomic::{AtomicU64, Ordering};

named_enum! {
    /// Where shared memory comes in large folios: the file `shmem_enabled`, and the option `huge` of a file
    /// system, which has neither of the last two.
    #[repr(u8)]
    pub enum ShmemEnabled {
        /// Everywhere but where a program said NOHUGEPAGE.
        Always = "always",
        /// Where all of the folio is in the file; and where a program said HUGEPAGE.
        WithinSize = "within_size",
        /// Where a program said HUGEPAGE.
        Advise = "advise",
        /// Nowhere.
        Never = "never",
        /// Nowhere, whatever a file system or a size says.
        Deny = "deny",
        /// Everywhere in the PMD's order, whatever a file system says.
        Force = "force",
    }
}

named_enum! {
    /// Where folios of one size are used for memory without a file system (`hugepages-*kB/shmem_enabled`).
    #[repr(u8)]
    pub enum ShmemSizeEnabled {
        /// As [`ShmemEnabled::Always`].
        Always = "always",
        /// As [`ShmemEnabled`] says.
        Inherit = "inherit",
        /// Where all of the folio is in the file.
        WithinSize = "within_size",
        /// As [`ShmemEnabled::Advise`].
        Advise = "advise",
        /// Nowhere, unless the common word says so of a call that writes.
        Never = "never",
    }
}

/// All settings at one moment, in a word.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct ShmemHuge(u64);

/// The sets of sizes with a word of their own. An order is in one of them at most.
const ALWAYS: u32 = 0;
const INHERIT: u32 = 12;
const WITHIN: u32 = 24;
const ADVISE: u32 = 36;
/// The common word, as the number of the variant.
const ENABLED: u32 = 48;

const _: () = assert!(Order::COUNT <= 12 && ShmemEnabled::ALL.len() <= 16);

/// A setting that Linux refuses: one size other than the PMD's inherits `force`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("only the PMD's size can inherit `force`")]
pub struct ForcesSizes;

impl ShmemHuge {
    /// Linux's defaults: nowhere, and only the PMD's size inherits that.
    pub const NEVER: Self =
        Self((ShmemEnabled::Never as u64) << ENABLED).with_set(INHERIT, OrderSet::PMD, true);

    const fn sizes(self, shift: u32) -> OrderSet {
        OrderSet::from_bits((self.0 >> shift) as u16)
    }

    const fn with_set(self, shift: u32, orders: OrderSet, is_in: bool) -> Self {
        let mask = (OrderSet::ALL.bits() as u64) << shift;
        let others = self.sizes(shift).difference(orders);
        let set = if is_in { others.union(orders) } else { others };
        Self((self.0 & !mask) | ((set.bits() as u64) << shift))
    }

    /// The common word.
    pub const fn enabled(self) -> ShmemEnabled {
        ShmemEnabled::ALL[(self.0 >> ENABLED & 0xf) as usize]
    }

    /// With another common word.
    ///
    /// # Errors
    ///
    /// [`ForcesSizes`].
    pub fn with_enabled(self, enabled: ShmemEnabled) -> Result<Self, ForcesSizes> {
        if enabled == ShmemEnabled::Force && self.sizes(INHERIT) != OrderSet::PMD {
            return Err(ForcesSizes);
        }
        Ok(Self((self.0 & !(0xf << ENABLED)) | (enabled as u64) << ENABLED))
    }

    /// The word of the folios of `order`.
    pub const fn size(self, order: Order) -> ShmemSizeEnabled {
        if self.sizes(ALWAYS).contains(order) {
            ShmemSizeEnabled::Always
        } else if self.sizes(INHERIT).contains(order) {
            ShmemSizeEnabled::Inherit
        } else if self.sizes(WITHIN).contains(order) {
            ShmemSizeEnabled::WithinSize
        } else if self.sizes(ADVISE).contains(order) {
            ShmemSizeEnabled::Advise
        } else {
            ShmemSizeEnabled::Never
        }
    }

    /// With another word for the folios of `order`, one of [`OrderSet::SHMEM`].
    ///
    /// # Errors
    ///
    /// [`ForcesSizes`].
    pub fn with_size(self, order: Order, word: ShmemSizeEnabled) -> Result<Self, ForcesSizes> {
        if word == ShmemSizeEnabled::Inherit && order != Order::PMD && self.enabled() == ShmemEnabled::Force {
            return Err(ForcesSizes);
        }
        let one = OrderSet::of(order).intersection(OrderSet::SHMEM);
        Ok(self
            .with_set(ALWAYS, one, word == ShmemSizeEnabled::Always)
            .with_set(INHERIT, one, word == ShmemSizeEnabled::Inherit)
            .with_set(WITHIN, one, word == ShmemSizeEnabled::WithinSize)
            .with_set(ADVISE, one, word == ShmemSizeEnabled::Advise))
    }

    /// The folios for which Linux aligns a mapping of a file in memory (`shmem_get_unmapped_area`), which is
    /// in a mount with this option, or in none; or of shared memory that it makes itself.
    pub fn alignment(self, of: Option<Option<ShmemEnabled>>) -> Option<Order> {
        match self.enabled() {
            ShmemEnabled::Deny => return None,
            ShmemEnabled::Force => return Some(Order::PMD),
            _ => {}
        }
        let huge = of.flatten().unwrap_or(self.enabled());
        let is_on = huge != ShmemEnabled::Never;
        let own = self.sizes(ALWAYS).union(self.sizes(WITHIN)).union(self.sizes(ADVISE));
        let sizes = match of {
            None if is_on => own.union(self.sizes(INHERIT)),
            None => own,
            Some(_) => OrderSet::EMPTY,
        };
        sizes.largest().or(is_on.then_some(Order::PMD))
    }

    /// The orders that a folio for `page` of a file may have. `mount` is the option of the file system that
    /// the file is in; without one the memory is of no mount, and a mapping has sizes of its own.
    pub(crate) fn orders(self, mount: Option<ShmemEnabled>, page: NewPage) -> OrderSet {
        let common = match self.enabled() {
            ShmemEnabled::Deny => return OrderSet::EMPTY,
            ShmemEnabled::Force => OrderSet::PMD,
            _ if page.is_forced => OrderSet::PMD,
            enabled => page.common(mount.unwrap_or(enabled)),
        };
        if mount.is_some() || !page.is_mapped {
            return common;
        }
        if self.enabled() == ShmemEnabled::Force {
            return self.sizes(INHERIT);
        }
        let inherited = if common.is_empty() { OrderSet::EMPTY } else { self.sizes(INHERIT) };
        let advised = if page.is_advised { self.sizes(ADVISE) } else { OrderSet::EMPTY };
        self.sizes(ALWAYS).union(inherited).union(advised).union(page.within_size(self.sizes(WITHIN)))
    }
}

impl Default for ShmemHuge {
    fn default() -> Self {
        Self::NEVER
    }
}

impl fmt::Debug for ShmemHuge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = OrderSet::SHMEM.iter().map(|order| (order.get(), self.size(order).name()));
        f.debug_struct("ShmemHuge").field("enabled", &self.enabled().name()).finish_non_exhaustive()?;
        f.debug_map().entries(sizes).finish()
    }
}

/// A page of shared memory that is to come to exist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewPage {
    pub(crate) index: u64,
    /// Bytes of the file once the call that makes it is done.
    pub(crate) size: u64,
    /// Whether a mapping faults, and whether its program said HUGEPAGE.
    pub(crate) is_mapped: bool,
    pub(crate) is_advised: bool,
    /// Whether a program asks for a collapse: then only a size's own word refuses it, and `deny`.
    pub(crate) is_forced: bool,
}

impl NewPage {
    /// What `enabled` allows for it. As in Linux a mapping asks for the PMD's order only.
    fn common(self, enabled: ShmemEnabled) -> OrderSet {
        let all = if self.is_mapped { OrderSet::PMD } else { OrderSet::SHMEM };
        let advised = if self.is_advised { all } else { OrderSet::EMPTY };
        match enabled {
            ShmemEnabled::Always => all,
            ShmemEnabled::WithinSize => match self.within_size(all) {
                OrderSet::EMPTY => advised,
                within => within,
            },
            ShmemEnabled::Advise => advised,
            ShmemEnabled::Never | ShmemEnabled::Deny | ShmemEnabled::Force => OrderSet::EMPTY,
        }
    }

    /// Those of `orders` in which no page is behind the end: the largest, and all below.
    fn within_size(self, orders: OrderSet) -> OrderSet {
        let pages = self.size.div_ceil(PAGE_SIZE);
        let is_within = |order: &Order| (self.index | (order.pages() - 1)) < pages;
        orders.iter().find(is_within).map_or(OrderSet::EMPTY, |order| orders.up_to(order))
    }
}

/// The settings of a machine. Each change holds for the pages that come after it.
pub(crate) struct ShmemHugeControls(AtomicU64);

impl ShmemHugeControls {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(ShmemHuge::NEVER.0))
    }

    pub(crate) fn get(&self) -> ShmemHuge {
        ShmemHuge(self.0.load(Ordering::Relaxed))
    }

    /// Changes some; no concurrent change is lost.
    pub(crate) fn change(
        &self,
        change: impl Fn(ShmemHuge) -> Result<ShmemHuge, ForcesSizes>,
    ) -> Result<(), ForcesSizes> {
        let changed = |word| change(ShmemHuge(word)).ok().map(|huge| huge.0);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed)
            .map(|_| ())
            .map_err(|_| ForcesSizes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const KIB64: Order = Order::ALL[4];

    fn page(index: u64, pages: u64) -> NewPage {
        NewPage { index, size: pages * PAGE_SIZE, is_mapped: true, is_advised: false, is_forced: false }
    }

    fn written(index: u64, pages: u64) -> NewPage {
        NewPage { is_mapped: false, ..page(index, pages) }
    }

    fn advised(index: u64, pages: u64) -> NewPage {
        NewPage { is_advised: true, ..page(index, pages) }
    }

    fn set(enabled: ShmemEnabled) -> ShmemHuge {
        ShmemHuge::NEVER.with_enabled(enabled).expect("only the PMD's size inherits")
    }

    /// Linux 6.18 on pages of a memfd: the orders that it made.
    #[test]
    fn the_common_word_says_what_a_memfd_comes_in() {
        use ShmemEnabled as E;
        let (none, pmd) = (OrderSet::EMPTY, OrderSet::PMD);
        for (word, mapped, with_advice, behind_end, written_first) in [
            (E::Never, none, none, none, none),
            (E::Advise, none, pmd, none, none),
            (E::WithinSize, pmd, pmd, none, OrderSet::SHMEM),
            (E::Always, pmd, pmd, pmd, OrderSet::SHMEM),
            (E::Force, pmd, pmd, pmd, pmd),
            (E::Deny, none, none, none, none),
        ] {
            let huge = set(word);
            assert_eq!(huge.orders(None, page(3, 1024)), mapped, "{word:?}");
            assert_eq!(huge.orders(None, page(3, 256)), behind_end, "{word:?}");
            assert_eq!(huge.orders(None, advised(700, 768)), with_advice, "{word:?}");
            assert_eq!(huge.orders(None, page(700, 768)), behind_end, "{word:?}");
            assert_eq!(huge.orders(None, written(0, 1024)), written_first, "{word:?}");
        }
    }

    #[test]
    fn within_size_has_the_largest_order_that_ends_in_the_file() {
        let huge = set(ShmemEnabled::WithinSize);
        for (index, pages, most) in
            [(0, 16, 4), (15, 40, 5), (32, 40, 3), (512, 768, 8), (1, 17, 4), (16, 17, 0)]
        {
            let orders = huge.orders(None, written(index, pages));
            assert_eq!(orders.most().get(), most, "page {index} of {pages}");
        }
    }

    #[test]
    fn a_size_has_its_own_word_in_mappings_only() {
        let only = |word| ShmemHuge::NEVER.with_size(KIB64, word).expect("not forced");
        let one = OrderSet::of(KIB64);
        assert_eq!(only(ShmemSizeEnabled::Always).orders(None, page(3, 4)), one);
        assert_eq!(only(ShmemSizeEnabled::Always).orders(None, written(3, 4)), OrderSet::EMPTY);
        assert_eq!(only(ShmemSizeEnabled::WithinSize).orders(None, page(3, 4)), OrderSet::EMPTY);
        assert_eq!(only(ShmemSizeEnabled::WithinSize).orders(None, page(3, 16)), one);
        assert_eq!(only(ShmemSizeEnabled::Advise).orders(None, page(3, 4)), OrderSet::EMPTY);
        assert_eq!(only(ShmemSizeEnabled::Advise).orders(None, advised(3, 4)), one);
        assert_eq!(only(ShmemSizeEnabled::Inherit).orders(None, page(3, 16)), OrderSet::EMPTY);
        let inherits =
            only(ShmemSizeEnabled::Inherit).with_enabled(ShmemEnabled::Always).expect("not forced");
        assert_eq!(inherits.orders(None, page(3, 16)), one.union(OrderSet::PMD));
        let denied = only(ShmemSizeEnabled::Always).with_enabled(ShmemEnabled::Deny).expect("not forced");
        assert_eq!(denied.orders(None, page(3, 16)), OrderSet::EMPTY);
        for order in OrderSet::SHMEM.iter() {
            for &word in ShmemSizeEnabled::ALL {
                let huge = ShmemHuge::NEVER.with_size(order, word).expect("not forced");
                assert_eq!((huge.size(order), huge.enabled()), (word, ShmemEnabled::Never));
            }
        }
    }

    /// Linux 6.18 on pages of memfds, unnamed memory and files of a tmpfs.
    #[test]
    fn what_a_program_asks_to_collapse_is_refused_by_deny_and_by_the_size_only() {
        let asked = NewPage { is_forced: true, ..page(3, 4) };
        for &word in ShmemEnabled::ALL {
            let wanted = if word == ShmemEnabled::Deny { OrderSet::EMPTY } else { OrderSet::PMD };
            for mount in [None, Some(ShmemEnabled::Never), Some(ShmemEnabled::Advise)] {
                assert_eq!(set(word).orders(mount, asked).intersection(OrderSet::PMD), wanted, "{word:?}");
            }
        }
        for (word, by_size) in [(ShmemSizeEnabled::Never, false), (ShmemSizeEnabled::Advise, false)] {
            let huge = ShmemHuge::NEVER.with_size(Order::PMD, word).expect("not forced");
            assert_eq!(huge.orders(None, asked).contains(Order::PMD), by_size);
            let advised = NewPage { is_advised: true, ..asked };
            assert_eq!(huge.orders(None, advised).contains(Order::PMD), word == ShmemSizeEnabled::Advise);
            assert_eq!(huge.orders(Some(ShmemEnabled::Never), asked), OrderSet::PMD);
        }
    }

    /// As Linux 6.18 places mappings of 8 MiB.
    #[test]
    fn mappings_are_aligned_for_folios_that_may_come() {
        use ShmemEnabled as E;
        let (memfd, pmd) = (Some(None), Some(Order::PMD));
        let of = |huge: ShmemHuge| [None, memfd, Some(Some(E::Never))].map(|of| huge.alignment(of));
        assert_eq!(of(set(E::Never)), [None; 3]);
        assert_eq!(of(set(E::Advise)), [pmd, pmd, None]);
        assert_eq!(of(set(E::Deny)), [None; 3]);
        assert_eq!(of(set(E::Force)), [pmd; 3]);
        let small = ShmemHuge::NEVER.with_size(KIB64, ShmemSizeEnabled::Advise).expect("not forced");
        assert_eq!(of(small), [Some(KIB64), None, None]);
        assert_eq!(set(E::Never).alignment(Some(Some(E::Always))), pmd);
    }

    #[test]
    fn no_other_size_inherits_force() {
        let inherits = ShmemHuge::NEVER.with_size(KIB64, ShmemSizeEnabled::Inherit).expect("not forced");
        assert_eq!(inherits.with_enabled(ShmemEnabled::Force), Err(ForcesSizes));
        assert_eq!(set(ShmemEnabled::Force).with_size(KIB64, ShmemSizeEnabled::Inherit), Err(ForcesSizes));
        let controls = ShmemHugeControls::new();
        assert_eq!(controls.change(|huge| huge.with_enabled(ShmemEnabled::Force)), Ok(()));
        assert_eq!(
            controls.change(|huge| huge.with_size(KIB64, ShmemSizeEnabled::Inherit)),
            Err(ForcesSizes)
        );
        assert_eq!(controls.get(), set(ShmemEnabled::Force));
    }

    #[test]
    fn a_file_system_has_its_own_word_under_deny_and_force() {
        let always = Some(ShmemEnabled::Always);
        assert_eq!(set(ShmemEnabled::Never).orders(always, page(3, 4)), OrderSet::PMD);
        assert_eq!(set(ShmemEnabled::Never).orders(always, written(3, 4)), OrderSet::SHMEM);
        assert_eq!(set(ShmemEnabled::Always).orders(Some(ShmemEnabled::Never), page(3, 4)), OrderSet::EMPTY);
        assert_eq!(set(ShmemEnabled::Deny).orders(always, page(3, 4)), OrderSet::EMPTY);
        assert_eq!(set(ShmemEnabled::Force).orders(Some(ShmemEnabled::Never), page(3, 4)), OrderSet::PMD);
    }
}
