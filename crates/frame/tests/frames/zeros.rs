//! Which blocks are zero-filled.

use crate::support::*;

/// Every byte counts: those before the block and behind it do not.
#[test]
fn a_block_is_zero_only_if_all_its_bytes_are() {
    let frames = frames(&[(0, 1024)], 1, PcpTechnique::OrderZero);
    for (order, twice) in [(Order::ZERO, Order::ALL[1]), (Order::ALL[2], Order::ALL[3])] {
        let pin = frames.platform().pin();
        let first = frames.allocate(&pin, AllocRequest::new(twice, TEST)).unwrap();
        let block = first.offset(order.pages());
        let bytes = frames.platform().direct_map(block);
        // SAFETY: the pages before it are of the same allocation, which no other thread knows.
        unsafe { frames.platform().direct_map(first).write_bytes(0xff, order.bytes() as usize) };
        // SAFETY: the block is of the same allocation, which no other thread knows.
        unsafe { bytes.write_bytes(0, order.bytes() as usize) };
        assert!(frames.is_zero(block, order));
        for at in 0..order.bytes() as usize {
            // SAFETY: the byte lies inside of the block.
            let byte = unsafe { bytes.add(at) };
            // SAFETY: it is a byte of this thread's allocation.
            unsafe { byte.write(1) };
            assert!(!frames.is_zero(block, order), "byte {at} of order {order:?}");
            // SAFETY: it is a byte of this thread's allocation.
            unsafe { byte.write(0) };
        }
        assert!(frames.is_zero(block, order));
        frames.free(&pin, first, twice).unwrap();
    }
}
