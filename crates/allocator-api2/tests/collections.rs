//! Collections on Quire's heap: what is written is read, all comes back, and the end of memory is an error.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use allocator_api2::alloc::{Allocator, Layout};
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use quire_allocator_api2::HeapAllocator;
use quire_frame::{FrameConfig, Frames, KernelFrames};
use quire_host::{HostConfig, HostPlatform};
use quire_slab::KernelHeap;

#[test]
fn collections_live_on_the_heap_and_leave_nothing_behind() {
    let platform: HostPlatform = HostPlatform::new(&HostConfig::with_ram(16 << 20)).unwrap();
    let _cpu = platform.vcpu(0).unwrap();
    let frames = Frames::new(platform, FrameConfig::default()).unwrap();
    let heap = KernelHeap::new(KernelFrames::new(&frames)).unwrap();
    let before = frames.reports().free_frames();
    {
        let allocator = HeapAllocator::new(&heap);
        let mut grown = Vec::new_in(allocator);
        grown.extend(0..100_000_u64);
        assert!(grown.iter().zip(0..).all(|(&found, wanted)| found == wanted));
        let nested: Vec<_, _> = {
            let mut nested = Vec::new_in(allocator);
            nested.extend((0..1000_u64).map(|number| Box::new_in([number; 9], allocator)));
            nested
        };
        assert!(nested.iter().zip(0..).all(|(found, wanted)| **found == [wanted; 9]));

        let page = Layout::from_size_align(4096, 4096).unwrap();
        let zeroed = allocator.allocate_zeroed(page).unwrap();
        assert_eq!((zeroed.len(), zeroed.cast::<u8>().addr().get() % 4096), (4096, 0));
        // SAFETY: 4096 bytes that were just allocated.
        assert!(unsafe { zeroed.as_ref() }.iter().all(|&byte| byte == 0));
        // SAFETY: allocated above, and not used any more.
        unsafe { allocator.deallocate(zeroed.cast(), page) };

        let mut refused: Vec<u8, _> = Vec::new_in(allocator);
        assert!(refused.try_reserve(64 << 20).is_err(), "64 MiB in 16 MiB");
    }
    heap.shrink();
    assert_eq!(frames.reports().free_frames(), before, "frames were lost");
    frames.audit().validate(&mut |violation| panic!("{violation}"));
}
