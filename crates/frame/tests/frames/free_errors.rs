//! A hazard of docs/hazards.md: "double free, free of a mapped frame, free with the wrong order: each a
//! distinct error, never silent", and none changes anything.

use crate::support::*;

const TECHNIQUES: [PcpTechnique; 4] = PcpTechnique::ALL;

fn machine(pcp: PcpTechnique) -> Audited {
    frames(&[(0, 2048)], 1, pcp)
}

fn block(frames: &Frames<Machine>, number: u8) -> (Pfn, Order) {
    let pin = frames.platform().pin();
    let order = order(number);
    (frames.allocate(&pin, AllocRequest::new(order, TEST)).unwrap(), order)
}

/// Neither [`Frames::free`] nor [`Frames::gather`] takes the block.
fn assert_refused(frames: &Frames<Machine>, pfn: Pfn, order: Order, error: FreeError) {
    let mut chain = FrameChain::new();
    assert_eq!(frames.gather(&mut chain, pfn, order), Err(error));
    assert!(chain.is_empty());
    assert_eq!(frames.free(&frames.platform().pin(), pfn, order), Err(error));
}

#[test]
fn a_double_free_is_told_apart_wherever_the_frame_is() {
    for pcp in TECHNIQUES {
        let frames = machine(pcp);
        let pin = frames.platform().pin();
        for number in [0, 1, 4, 9] {
            let (pfn, order) = block(&frames, number);
            frames.free(&pin, pfn, order).unwrap();
            // On a CPU's list, or inside the block that it was joined to.
            assert_eq!(frames.free(&pin, pfn, order), Err(FreeError::DoubleFree));
            frames.pcp().drain_all(&pin);
            assert_eq!(frames.free(&pin, pfn, order), Err(FreeError::DoubleFree));
            assert_eq!(frames.free(&pin, pfn, Order::ZERO), Err(FreeError::DoubleFree));
        }
        let (gathered, zero) = block(&frames, 0);
        let mut chain = FrameChain::new();
        frames.gather(&mut chain, gathered, zero).unwrap();
        assert_eq!(frames.gather(&mut chain, gathered, zero), Err(FreeError::DoubleFree));
        frames.free_chain(&pin, chain);
        let (retired, zero) = block(&frames, 0);
        frames.limbo().retire(&pin, retired, zero).unwrap();
        assert_eq!(frames.free(&pin, retired, zero), Err(FreeError::DoubleFree));
    }
}

#[test]
fn the_wrong_order_and_the_inside_of_a_block_are_refused() {
    for pcp in TECHNIQUES {
        let frames = machine(pcp);
        let pin = frames.platform().pin();
        let (pfn, three) = block(&frames, 3);
        let wrong = FreeError::WrongOrder { allocated: three };
        assert_refused(&frames, pfn, Order::ZERO, wrong);
        assert_refused(&frames, pfn, order(4), wrong);
        assert_refused(&frames, pfn.offset(3), Order::ZERO, FreeError::NotHead);
        assert_refused(&frames, pfn.offset(4), order(2), FreeError::NotHead);
        assert_sound(&frames);
        frames.free(&pin, pfn, three).unwrap();
    }
}

#[test]
fn a_mapped_a_referenced_and_a_locked_frame_are_refused() {
    for pcp in TECHNIQUES {
        let frames = machine(pcp);
        let pin = frames.platform().pin();
        for number in [0, 2] {
            let (pfn, order) = block(&frames, number);
            let frame = frames.known(pfn);
            frame.as_folio().set_maps(3);
            assert_refused(&frames, pfn, order, FreeError::Mapped { maps: 3 });
            frame.as_folio().set_maps(0);

            frame.get(2);
            assert!(frame.try_get());
            assert_refused(&frames, pfn, order, FreeError::Referenced { references: 4 });
            assert!(!frame.put(3));

            frame.classify(Kind::Table).unwrap();
            frame.as_table().lock::<Machine>(LockClass::PteTable);
            assert_eq!(frames.free(&pin, pfn, order), Err(FreeError::Locked));
            // SAFETY: taken above.
            unsafe { frame.as_table().unlock::<Machine>(LockClass::PteTable) };
            frame.classify(Kind::Allocated).unwrap();

            frame.set_flags(FrameFlags::DIRTY);
            assert_eq!(frame.kind(), Kind::Allocated, "a refused free leaves the frame alone");
            frames.free(&pin, pfn, order).unwrap();
            assert!(!frame.try_get(), "no reference can be had to a free frame");
            assert!(frame.word().flags().is_empty(), "a free frame has no flags");
        }
    }
}

/// A hazard of docs/hazards.md: "a bad page hidden in the tail of a high-order block: check every base page,
/// not the head".
#[test]
fn a_bad_page_in_the_tail_of_a_block_is_found() {
    for pcp in TECHNIQUES {
        let frames = machine(pcp);
        let pin = frames.platform().pin();
        for (number, tail) in [(1, 1), (3, 5), (9, 511)] {
            let (pfn, order) = block(&frames, number);
            let bad = pfn.offset(tail);
            frames.known(bad).as_folio().set_maps(1);
            let error = Err(FreeError::BadTail { pfn: bad });
            assert_eq!(frames.free(&pin, pfn, order), error);
            assert_eq!(frames.gather(&mut FrameChain::new(), pfn, order), error);
            assert_eq!(frames.limbo().retire(&pin, pfn, order), error);
            assert_eq!(frames.known(pfn).kind(), Kind::Allocated);
            frames.known(bad).as_folio().set_maps(0);
            frames.free(&pin, pfn, order).unwrap();
        }
    }
}

#[test]
fn the_last_put_lets_the_frame_go() {
    let frames = machine(PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    let (pfn, zero) = block(&frames, 0);
    let frame = frames.known(pfn);
    frame.classify(Kind::Anonymous).unwrap();
    frame.get(1);
    assert!(!frame.put(1));
    assert!(frame.put(1));
    assert!(!frame.put(1), "there is nothing left to drop");
    frames.free(&pin, pfn, zero).unwrap();
}

/// The same where blocks are not looked at frame by frame: their users say when inner frames are in use.
#[test]
fn a_block_whose_inner_frames_are_in_use_is_checked_whole_on_any_machine() {
    let frames = machine(PcpTechnique::All);
    let pin = frames.platform().pin();
    let (pfn, order) = block(&frames, 4);
    frames.known(pfn).set_flags(FrameFlags::TAILS_IN_USE);
    let bad = pfn.offset(15);
    frames.known(bad).as_folio().set_maps(1);
    assert_eq!(frames.free(&pin, pfn, order), Err(FreeError::BadTail { pfn: bad }));
    frames.known(bad).as_folio().set_maps(0);
    frames.free(&pin, pfn, order).unwrap();
    assert!(frames.known(pfn).word().flags().is_empty());
}
