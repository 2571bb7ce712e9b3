//! What kinds of folios memory is populated with.

use core::fmt;
use quire_arch::{Order, PAGE_SIZE};
use quire_mm::thp::{HugeConfig, HugePolicy, OrderSet, SizeEnabled};

/// The folios that populated memory is made of, and how they are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Folios {
    /// Their order.
    pub(crate) order: Order,
    /// Whether one PMD entry maps each. Only for folios of the PMD's order.
    pub(crate) by_pmd: bool,
}

impl Folios {
    /// Single pages.
    pub(crate) const PAGES: Self = Self::of(Order::ZERO);
    /// 2 MiB by one entry.
    pub(crate) const PMD: Self = Self { order: Order::PMD, by_pmd: true };

    /// Folios of `order`, each page of which has an entry of its own.
    pub(crate) const fn of(order: Order) -> Self {
        Self { order, by_pmd: false }
    }

    /// Every kind of anonymous folio; folios of two pages do not exist.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Order::ALL
            .into_iter()
            .filter(|&order| order <= Order::PMD && order != Order::ALL[1])
            .map(Self::of)
            .chain([Self::PMD])
    }

    /// Bytes of one.
    pub(crate) const fn bytes(self) -> u64 {
        self.order.bytes()
    }

    /// How many `bytes` of memory are.
    pub(crate) const fn in_bytes(self, bytes: u64) -> u64 {
        bytes / self.bytes()
    }

    /// The controls with which faults allocate these and no others.
    pub(crate) fn config(self) -> HugeConfig {
        let policy = HugePolicy::MADVISE
            .with_sizes(OrderSet::ANONYMOUS, SizeEnabled::Never)
            .with_sizes(OrderSet::of(self.order), SizeEnabled::Always);
        HugeConfig { policy, ..HugeConfig::default() }
    }
}

impl fmt::Display for Folios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.bytes() / 1024;
        match (self.order, self.by_pmd) {
            (Order::ZERO, _) => write!(f, "pages of 4 KiB"),
            (Order::PMD, true) => f.write_str("folios of 2 MiB by PMD entries"),
            (Order::PMD, false) => f.write_str("folios of 2 MiB by pages"),
            _ => write!(f, "folios of {kib} KiB"),
        }
    }
}

/// Base pages in `bytes`.
pub(crate) const fn pages(bytes: u64) -> u64 {
    bytes / PAGE_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_mm::{
        space::VmFlags,
        thp::{HugeDisable, HugeUse},
    };

    #[test]
    fn the_controls_allow_one_order() {
        for folios in Folios::all() {
            let policy = folios.config().policy;
            let orders = policy.orders(HugeUse::Fault, VmFlags::empty(), HugeDisable::No);
            let one = if folios.order == Order::ZERO { OrderSet::EMPTY } else { OrderSet::of(folios.order) };
            assert_eq!(orders, one, "{folios}");
        }
    }

    #[test]
    fn every_kind_has_its_name() {
        let names: Vec<String> = Folios::all().map(|folios| folios.to_string()).collect();
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert_eq!((names.len(), names[1].as_str()), (10, "folios of 16 KiB"));
    }
}
