//! The label in a listed folio's descriptor: where it is.

use super::LruList;
use quire_arch::{CpuId, MAX_CPUS, Order};
use quire_frame::Frame;

const ORDER_SHIFT: u16 = 12;
const INCOMING: u16 = 1 << 11;
const LIST_SHIFT: u16 = 8;
const LIST_MASK: u16 = 7;
const CPU_MASK: u16 = 0xff;

const _: () = assert!(MAX_CPUS <= CPU_MASK as usize + 1 && LruList::COUNT < LIST_MASK as usize);
const _: () = assert!(Order::COUNT <= 16);

/// Where a folio is listed, its list or target list, and its order: a split folio counts with its old order
/// until this crate has seen the split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Label(u16);

/// The lock that guards a listed folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListPlace {
    /// That of what this CPU has listed.
    Incoming(CpuId),
    /// That of the lists of its memcg and node.
    Main,
}

impl Label {
    /// Of a folio that is on no list, or is about to be put on one by a CPU that has set its flag.
    pub(crate) const NONE: Self = Self(0);

    /// Whether the folio is on a list.
    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.0 >> LIST_SHIFT & LIST_MASK != 0
    }

    /// In `cpu`'s batch, on its way to `list`.
    #[inline]
    pub(crate) fn incoming(list: LruList, order: Order, cpu: CpuId) -> Self {
        let main = Self::main(list, order);
        Self(main.0 | INCOMING | cpu.index() as u16 & CPU_MASK)
    }

    /// On `list`.
    #[inline]
    pub(crate) fn main(list: LruList, order: Order) -> Self {
        Self(u16::from(order.get()) << ORDER_SHIFT | (list as u16 + 1) << LIST_SHIFT)
    }

    /// At the same place, on or on its way to `list`, as one of `order`.
    pub(crate) fn with(self, list: LruList, order: Order) -> Self {
        Self(Self::main(list, order).0 | self.0 & (INCOMING | CPU_MASK))
    }

    /// That of a listed folio.
    #[inline]
    pub(crate) fn of(frame: &Frame) -> Self {
        Self(frame.as_folio().list_label())
    }

    #[inline]
    pub(crate) fn put(self, frame: &Frame) {
        frame.as_folio().set_list_label(self.0);
    }

    #[inline]
    pub(crate) fn place(self) -> ListPlace {
        if self.0 & INCOMING == 0 {
            return ListPlace::Main;
        }
        CpuId::new(usize::from(self.0 & CPU_MASK)).map_or(ListPlace::Main, ListPlace::Incoming)
    }

    #[inline]
    pub(crate) fn list(self) -> LruList {
        // A number past the last list is never stored.
        let number = usize::from(self.0 >> LIST_SHIFT & LIST_MASK);
        LruList::ALL.get(number.wrapping_sub(1)).copied().unwrap_or(LruList::Unevictable)
    }

    #[inline]
    pub(crate) fn order(self) -> Order {
        Order::new((self.0 >> ORDER_SHIFT) as u8).unwrap_or(Order::ZERO)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_place_list_and_order_survives_the_packing() {
        for &list in LruList::ALL {
            for order in Order::ALL {
                let main = Label::main(list, order);
                assert_eq!((main.place(), main.list(), main.order()), (ListPlace::Main, list, order));
                for cpu in (0..MAX_CPUS).filter_map(CpuId::new) {
                    let incoming = Label::incoming(list, order, cpu);
                    assert_eq!(
                        (incoming.place(), incoming.list(), incoming.order()),
                        (ListPlace::Incoming(cpu), list, order)
                    );
                    let changed = incoming.with(LruList::ActiveFile, Order::ZERO);
                    assert_eq!(changed, Label::incoming(LruList::ActiveFile, Order::ZERO, cpu));
                }
            }
        }
    }
}
