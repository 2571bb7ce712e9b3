//! Parts of a folio that are freed while the rest of it is still being split.

#![cfg(not(loom))]

use crate::support::*;

/// The order of the folios that are split.
const EIGHT: Order = Order::ALL[3];

/// A folio in a page block of which 255 frames are given out as unmovable memory, the others, but for one, as
/// movable memory. None else is free.
fn folio_in_a_shared_block(frames: &Frames<Machine>) -> Pfn {
    let pin = frames.platform().pin();
    let movable = ONE.movability(Migratetype::Movable);
    let ends = frames.reserved().start();
    let head = loop {
        let head = frames.allocate(&pin, movable.order(EIGHT).kind(Kind::Anonymous)).unwrap();
        if head.block_start(order(9)).offset(512) <= ends {
            break head;
        }
    };
    let block = head.block_start(order(9));
    let mut singles = exhaust(frames, movable);
    singles.retain(|pfn| pfn.block_start(order(9)) == block);
    for &page in &singles[..255] {
        put(frames, page, Order::ZERO);
        assert_eq!(frames.allocate(&pin, ONE), Ok(page));
    }
    assert_eq!(frames.map().block_migratetype(head), Migratetype::Movable);
    // Unmovable memory has half of the block with this one.
    put(frames, singles[255], Order::ZERO);
    head
}

/// Splits the folio, and calls `meanwhile` when the words of the last `parts` pages are written, and no
/// others.
fn split_with(frames: &Frames<Machine>, head: Pfn, parts: u64, mut meanwhile: impl FnMut()) {
    // One reference is the mappings', and one is the splitting thread's.
    frames.known(head).as_folio().set_maps(EIGHT.pages() as u32);
    assert!(frames.known(head).get(1));
    let mut split = frames.folios().begin_split(frames.folios().lock_head(head));
    (0..EIGHT.pages()).for_each(|nth| split.count_map(nth));
    let mut unmapped = FrameChain::new();
    let part_is = |part: Pfn| {
        if part.0 == head.0 + EIGHT.pages() - parts - 1 {
            meanwhile();
        }
        PartIs::Unlisted
    };
    split.finish_with(Order::ZERO, 1, false, &mut unmapped, part_is).unwrap();
}

/// A page's last mapping goes, and it is free.
fn unmap_and_free(frames: &Frames<Machine>, page: Pfn) {
    assert_eq!(frames.folios().lock_head(page).remove_maps(1), MapsLeft::None);
    put(frames, page, Order::ZERO);
}

/// Hazard: a part of a folio is freed when its own word is written, and the first frame has the old order
/// until the end of the split. A page block that changes its type then skips the part, which is taken off the
/// list of the new type, where it is not: it is given out a second time, and another free frame is lost.
#[test]
fn a_part_that_is_freed_before_the_split_is_over_is_given_out_once() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::None);
    let head = folio_in_a_shared_block(&frames);
    let last = Pfn(head.0 + 7);
    let mut given = Vec::new();
    split_with(&frames, head, 1, || {
        unmap_and_free(&frames, last);
        for request in [ONE, ONE.movability(Migratetype::Movable)] {
            given.extend(frames.allocate(&frames.platform().pin(), request));
        }
    });
    assert_eq!(frames.map().block_migratetype(head), Migratetype::Unmovable, "it was not taken over");
    assert_eq!(given.len(), 2, "a free frame is lost");
    assert_ne!(given[0], given[1], "a frame is given out twice");
}

/// Hazard: parts of a folio are freed before the split is over, and the page block changes its type: what is
/// left of them stays on the list of the old type.
#[test]
fn parts_that_are_freed_before_the_split_is_over_follow_their_page_block() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::None);
    let head = folio_in_a_shared_block(&frames);
    split_with(&frames, head, 2, || {
        (6..8).for_each(|nth| unmap_and_free(&frames, Pfn(head.0 + nth)));
        frames.allocate(&frames.platform().pin(), ONE).unwrap();
    });
    assert_eq!(frames.map().block_migratetype(head), Migratetype::Unmovable, "it was not taken over");
    // The other one is on the list of what the page block is now; the audit looks there, too.
    assert_eq!(zone(&frames).free, 2);
}
