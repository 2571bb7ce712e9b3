//! The allocator against a set of frames.

use crate::support::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Step {
    Allocate(u8, Migratetype),
    Free(usize),
    Drain,
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    let order = prop_oneof![6 => Just(0u8), 3 => 1..=3u8, 2 => 4..=9u8, 1 => Just(10u8)];
    prop_oneof![
        6 => (order, prop::sample::select(&Migratetype::PCP_TYPES[..]))
            .prop_map(|(order, migratetype)| Step::Allocate(order, migratetype)),
        4 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Drain),
        1 => Just(Step::Tick),
    ]
}

/// What is free, frame by frame.
struct Model {
    free: BTreeSet<u64>,
}

impl Model {
    fn of(frames: &Frames<Machine>) -> Self {
        let mut free = BTreeSet::new();
        frames.audit().for_each_frame(|pfn, _| {
            if !frames.reserved().contains(pfn) {
                free.insert(pfn.0);
            }
        });
        Self { free }
    }

    fn has_block(&self, order: Order) -> bool {
        let starts = self.free.iter().filter(|&&pfn| Pfn(pfn).is_aligned(order));
        starts
            .into_iter()
            .any(|&pfn| self.free.range(pfn..pfn + order.pages()).count() as u64 == order.pages())
    }

    fn take(&mut self, pfn: Pfn, order: Order) {
        for frame in pfn.0..pfn.0 + order.pages() {
            assert!(self.free.remove(&frame), "frame {frame:#x} was given out twice");
        }
    }

    fn put(&mut self, pfn: Pfn, order: Order) {
        self.free.extend(pfn.0..pfn.0 + order.pages());
    }
}

fn agrees_with_the_model(pcp: PcpTechnique, steps: &[Step]) {
    let frames = frames(&[(5, 1600), (1801, 3900)], 2, pcp);
    let mut model = Model::of(&frames);
    let mut held: Vec<(Pfn, Order)> = Vec::new();
    for (turn, step) in steps.iter().enumerate() {
        // Two CPUs in turn, so that frames come home to another list than they came from.
        run_on(turn % 2);
        let pin = frames.platform().pin();
        match *step {
            Step::Allocate(number, migratetype) => {
                let order = order(number);
                let request = AllocRequest::new(order, TEST).movability(migratetype);
                match frames.allocate(&pin, request) {
                    Ok(pfn) => {
                        assert!(pfn.is_aligned(order));
                        model.take(pfn, order);
                        held.push((pfn, order));
                    }
                    Err(error) => {
                        assert_eq!(error, AllocError::OutOfMemory);
                        assert!(!model.has_block(order), "order {order} failed though it is free");
                    }
                }
            }
            Step::Free(pick) => {
                if !held.is_empty() {
                    let (pfn, order) = held.swap_remove(pick % held.len());
                    frames.free(&pin, pfn, order).unwrap();
                    model.put(pfn, order);
                }
            }
            Step::Drain => {
                frames.pcp().drain_all(&pin);
            }
            Step::Tick => {
                frames.pcp().age_lists(&pin);
            }
        }
        assert_eq!(frames.reports().free_frames(), model.free.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_agrees_with_a_set_of_frames(steps in prop::collection::vec(step(), 1..200)) {
        agrees_with_the_model(PcpTechnique::None, &steps);
    }

    /// A hazard of docs/hazards.md, "pages held in pcp lists make an allocation fail while memory is free".
    #[test]
    fn any_sequence_with_cpu_lists_agrees_too(steps in prop::collection::vec(step(), 1..200)) {
        agrees_with_the_model(PcpTechnique::OrderZero, &steps);
    }

    /// The same with large blocks on the lists: a request of any order succeeds whenever the free frames
    /// could form the block once all lists are drained.
    #[test]
    fn any_sequence_with_lists_of_every_order_agrees_too(steps in prop::collection::vec(step(), 1..200)) {
        agrees_with_the_model(PcpTechnique::All, &steps);
        agrees_with_the_model(PcpTechnique::Posted, &steps);
    }
}

#[test]
fn splits_and_merges_are_counted_and_leave_large_blocks() {
    let frames = frames(&[(0, 4096)], 1, PcpTechnique::None);
    let pin = frames.platform().pin();
    let before = zone(&frames);
    let pfn = frames.allocate(&pin, ONE).unwrap();
    let splits = frames.events().sum(VmEvent::BuddySplit);
    assert!(splits > 0);
    frames.free(&pin, pfn, Order::ZERO).unwrap();
    assert_eq!(frames.events().sum(VmEvent::BuddyMerge), splits, "what was split is whole again");
    let after = zone(&frames);
    // The request was unmovable and took a block over, so that only the sums by order are equal.
    let by_order = |blocks: BuddyCounts| blocks.map(|types| types.iter().sum::<u64>());
    assert_eq!(by_order(before.blocks), by_order(after.blocks));
}

/// Unmovable requests take whole page blocks instead of sprinkling all of memory.
#[test]
fn unmovable_memory_stays_in_few_page_blocks() {
    let frames = frames(&[(0, 16 * 512)], 1, PcpTechnique::None);
    let pin = frames.platform().pin();
    let movable = ONE.movability(Migratetype::Movable);
    let unmovable = ONE;
    let mut movables = Vec::new();
    for _ in 0..2000 {
        movables.push(frames.allocate(&pin, movable).unwrap());
        frames.allocate(&pin, unmovable).unwrap();
    }
    let report = zone(&frames);
    let unmovable_blocks = report.pageblocks[Migratetype::Unmovable.index()];
    assert!(unmovable_blocks <= 5, "2000 frames need 4 page blocks, {unmovable_blocks} were taken");
    // So when the movable half goes away, large blocks come back.
    put_all(&frames, movables, Order::ZERO);
    assert_sound(&frames);
    assert!(frames.allocate(&pin, AllocRequest::new(Order::PMD, TEST)).is_ok());
}

/// The last free memory is used whatever its type is.
#[test]
fn every_type_can_use_all_memory() {
    for migratetype in Migratetype::PCP_TYPES {
        let frames = frames(&[(0, 2048)], 1, PcpTechnique::OrderZero);
        let pin = frames.platform().pin();
        let other = Migratetype::PCP_TYPES[(migratetype.index() + 1) % 3];
        for _ in 0..300 {
            frames.allocate(&pin, ONE.movability(other)).unwrap();
        }
        let mut got = 300;
        while frames.allocate(&pin, ONE.movability(migratetype)).is_ok() {
            got += 1;
        }
        assert_eq!(got, frames.reports().totals().managed);
    }
}

#[test]
fn zeroed_frames_are_zero_also_when_they_were_written_before() {
    let frames = frames(&[(0, 1024)], 1, PcpTechnique::OrderZero);
    let pin = frames.platform().pin();
    for _ in 0..3 {
        let pfn = frames.allocate(&pin, AllocRequest::anonymous()).unwrap();
        // SAFETY: the frame was just given out to this test.
        let words = unsafe { frames.table(pfn) };
        for word in words {
            assert_eq!(word.swap(u64::MAX, std::sync::atomic::Ordering::Relaxed), 0);
        }
        frames.free(&pin, pfn, Order::ZERO).unwrap();
    }
}

/// A page block changes its type only when half of it is free or in use by the same type.
#[test]
fn a_block_in_use_keeps_its_type() {
    let frames = frames(&[(0, 512)], 1, PcpTechnique::None);
    let pin = frames.platform().pin();
    let movable = ONE.movability(Migratetype::Movable);
    let mut held = Vec::new();
    while frames.reports().free_frames() > 200 {
        held.push(frames.allocate(&pin, movable).unwrap());
    }
    let piece = frames.allocate(&pin, ONE).unwrap();
    assert_eq!(frames.events().sum(VmEvent::Extfrag), 1);
    assert_eq!(frames.events().sum(VmEvent::PageblockSteal), 0);
    assert_eq!(frames.map().block_migratetype(piece), Migratetype::Movable);
    assert_sound(&frames);
    put_all(&frames, held, Order::ZERO);
    frames.allocate(&pin, ONE).unwrap();
    assert_eq!(frames.events().sum(VmEvent::PageblockSteal), 1);
    assert_eq!(frames.map().block_migratetype(piece), Migratetype::Unmovable);
}

/// What cannot move takes the largest piece of another type; what can takes the smallest, where none is
/// large.
#[test]
fn a_fallback_picks_the_piece_by_what_it_would_spoil() {
    let frames = frames(&[(0, 2048)], 1, PcpTechnique::None);
    let pin = frames.platform().pin();
    let movable = ONE.movability(Migratetype::Movable);
    let first = frames.allocate(&pin, movable).unwrap();
    let unmovable = frames.allocate(&pin, ONE).unwrap();
    assert_ne!(first.block_start(Order::PMD), unmovable.block_start(Order::PMD));
    assert_eq!(frames.map().block_migratetype(unmovable), Migratetype::Unmovable);
    assert_eq!(frames.map().block_migratetype(first), Migratetype::Movable);

    // Use up all that is movable, and of the unmovable what is large.
    let types = |report: ZoneReport, kind: Migratetype| -> Vec<u64> {
        report.blocks.iter().map(|types| types[kind.index()]).collect()
    };
    let free = |kind| types(zone(&frames), kind);
    while free(Migratetype::Movable).iter().any(|&blocks| blocks > 0) {
        frames.allocate(&pin, movable).unwrap();
    }
    while free(Migratetype::Unmovable)[4..].iter().any(|&blocks| blocks > 0) {
        frames.allocate(&pin, ONE).unwrap();
    }
    let before = free(Migratetype::Unmovable);
    assert!(before[3] > 0 && before[..3].iter().any(|&blocks| blocks > 0), "{before:?}");
    let smallest = before.iter().position(|&blocks| blocks > 0).unwrap();
    frames.allocate(&pin, movable).unwrap();
    assert_eq!(free(Migratetype::Unmovable)[smallest], before[smallest] - 1);
    assert_eq!(free(Migratetype::Unmovable)[smallest + 1..], before[smallest + 1..]);
}

/// What is in use by the wanted type counts for it: the block was its own in all but name.
#[test]
fn a_block_full_of_one_type_becomes_its_own() {
    let frames = frames(&[(0, 512)], 1, PcpTechnique::None);
    let pin = frames.platform().pin();
    let movable = ONE.movability(Migratetype::Movable);
    let unmovable = ONE;
    let mut held = Vec::new();
    while frames.reports().free_frames() > 240 {
        held.push(frames.allocate(&pin, movable).unwrap());
    }
    for _ in 0..230 {
        frames.allocate(&pin, unmovable).unwrap();
    }
    assert_eq!(frames.events().sum(VmEvent::PageblockSteal), 0);
    put_all(&frames, held.drain(..30), Order::ZERO);
    frames.allocate(&pin, unmovable).unwrap();
    assert_eq!(frames.events().sum(VmEvent::PageblockSteal), 1);
}
