//! Devices that say more of themselves than there is.

use crate::common::machine::run_on;
use crate::common::{Machine, assert_sound, folio, swap};
use quire_arch::Order;
use quire_frame::VmEvent;
use quire_swap::{
    CompressedCache, DeviceFlags, DeviceMemory, IoState, PageIo, Submitted, Swap, SwapDevice, SwapOnOptions,
    SwapTechnique,
};

/// A device that keeps nothing.
struct Boasts;

impl SwapDevice<Machine> for Boasts {
    fn kind(&self) -> &'static str {
        "boasts"
    }

    fn slots(&self) -> u64 {
        512
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS
    }

    unsafe fn submit(&self, _: DeviceMemory<'_, Machine>, _: PageIo) -> Submitted {
        Submitted::Done(Ok(()))
    }

    fn cached(&self, _: DeviceMemory<'_, Machine>, _: PageIo) -> u64 {
        u64::MAX
    }

    fn compact(&self, _: DeviceMemory<'_, Machine>, _: u64) -> u64 {
        u64::MAX
    }
}

fn with_two_devices() -> Swap<Machine> {
    run_on(0);
    let swap = swap(4096, 1, SwapTechnique::All);
    swap.devices().swapon(Boasts, SwapOnOptions::default()).unwrap();
    let front = CompressedCache::new(swap.frames(), Boasts, 1 << 20).unwrap();
    swap.devices().swapon(front, SwapOnOptions::default()).unwrap();
    swap
}

/// Hazard: more pages are in a cache than were written, and those on the device are fewer than none.
#[test]
fn no_more_pages_are_cached_than_are_written() {
    let swap = with_two_devices();
    let order = Order::new(2).unwrap();
    for _ in 0..2 {
        let head = folio(&swap, order);
        swap.allocator().add_folio(head, 0).unwrap();
        assert_eq!(swap.io().write_folio(head), IoState::Done(Ok(())));
    }
    let pages = |event| swap.frames().events().sum(event);
    assert_eq!((pages(VmEvent::Zswpout), pages(VmEvent::Pswpout)), (2 * order.pages(), 0));
    assert_sound(&swap);
}

/// Hazard: frames that no device has freed count as progress, so that the search for memory never ends.
#[test]
fn no_more_frames_count_as_compacted_than_were_freed() {
    let swap = with_two_devices();
    assert_eq!([1, 32, u64::MAX].map(|wanted| swap.reclaim().compact_devices(wanted)), [0; 3]);
    assert_sound(&swap);
}
